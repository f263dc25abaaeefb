import re
from pathlib import Path

from browser import data_of
from fake_run import RECIPE, default_rows, make_run

from hornbook.track.comparison_page import render_comparison, write_comparison
from hornbook.track.notes import Notes, write_notes
from hornbook.track.runs import compare


def page(folder: Path, **recipes: str) -> str:
    return render_comparison(compare([make_run(folder / name, recipe=text) for name, text in recipes.items()]), "steps")


def test_each_run_has_its_curves_its_label_and_its_color(tmp_path: Path) -> None:
    source = page(tmp_path, one=RECIPE, two=RECIPE.replace("seed = 1234", "seed = 5"))
    data = data_of(source)
    assert data["over"] == "steps" and data["live"] is False
    assert [(run["label"], run["number"]) for run in data["curves"]] == [("A", 0), ("B", 1)]
    assert all({"train/loss", "train/tokens", "train/seconds"} <= set(run["series"]) for run in data["curves"])
    assert "training.seed" in source and "1234" in source
    assert source.count("def f(x):") == 0 < source.count('<span class="prompt">def </span>f(x):'), "a sample of each"


def test_the_page_is_self_contained_and_escaped(tmp_path: Path) -> None:
    hostile = RECIPE.replace('"demo"', '"</style><script>alert(1)</script>"').replace("causal_lm", "<b>")
    source = page(tmp_path, one=RECIPE, two=hostile)
    assert source.count("<script") == 2
    assert not re.search(r"<b>&|https?://(?!www.w3.org/2000/svg)|url\(|@import|<link|<img", source)
    assert "&lt;b&gt;" in source


def test_what_is_not_comparable_is_said_and_the_axis_is_chosen(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", rows=[{"kind": "train", "step": step, "loss": 3.0} for step in (1, 2)])
    two = make_run(
        tmp_path / "two", recipe=RECIPE.replace("causal_lm", "mlm"), rows=[default_rows()[0] | {"tokens": None}]
    )
    write_comparison(tmp_path / "page.html", compare([one, two]), "tokens")
    source = (tmp_path / "page.html").read_text()
    assert "losses of different objectives are not comparable: causal_lm, mlm" in source
    assert data_of(source)["over"] == "tokens"


def test_more_runs_than_colors(tmp_path: Path) -> None:
    source = page(tmp_path, **{f"run-{number}": RECIPE for number in range(10)})
    assert "run8" not in re.findall(r'class="(run\d+)"', source)
    assert "The recipes are identical." in source


def test_the_table_has_speed_and_size_and_no_column_without_values(tmp_path: Path) -> None:
    one, two = (make_run(tmp_path / name) for name in ("one", "two"))
    head = re.findall(r"<th[^>]*>(.*?)</th>", render_comparison(compare([one, two]), "steps"))
    assert {"Parameters", "Tokens/s", "Bits per byte"} <= set(head) and "Objective" not in head, "it is the same"
    rows = [{"kind": "train", "step": step, "loss": 3.0} for step in (1, 2)]
    bare = [make_run(tmp_path / name, rows=rows, recipe="name = 'x'\n") for name in ("three", "four")]
    head = re.findall(r"<th[^>]*>(.*?)</th>", render_comparison(compare(bare), "steps"))
    assert {"Tokens/s", "Validation", "Tokens"}.isdisjoint(head) and "Loss" in head


def test_a_validation_loss_says_what_it_was_measured_on_and_notes_are_shown(tmp_path: Path) -> None:
    row = {"kind": "validation", "step": 2, "loss": 3.0, "tokens": 800, "share": 0.25, "standard_error": 0.01}
    one, two = (make_run(tmp_path / name, rows=[row]) for name in ("one", "two"))
    write_notes(two, Notes(tags=("<b>",), note="<i>"))
    source = render_comparison(compare([one, two]), "steps")
    assert "3.0000<small>step 2</small><small>800 tokens</small><small>25%, ± 0.010</small>" in source
    assert '<td class="num" data-title="Validation">' in source
    assert '<span class="tag">&lt;b&gt;</span>' in source and '<span class="remark">&lt;i&gt;</span>' in source


def test_losses_over_different_windows_are_marked(tmp_path: Path) -> None:
    def cautions(*rows: dict[str, object]) -> list[str]:
        runs = [
            make_run(
                tmp_path / f"{row['tokens']}-{number}", rows=[{"kind": "validation", "step": 2, "loss": 3.0} | row]
            )
            for number, row in enumerate(rows)
        ]
        for run in runs:
            (run / "run.json").write_text('{"data": {"validation": "9f86"}}')
        return compare(runs).cautions

    assert cautions({"tokens": 100}, {"tokens": 100}) == []
    assert cautions({"tokens": 1000}, {"tokens": 27054}) == [
        "validation losses are over different numbers of tokens, 1,000 and 27,054: not exactly comparable"
    ]
