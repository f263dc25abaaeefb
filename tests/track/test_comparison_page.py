import re
from pathlib import Path

from fake_run import RECIPE, default_rows, make_run

from hornbook.track.comparison_page import render_comparison, write_comparison
from hornbook.track.runs import compare


def page(folder: Path, **recipes: str) -> str:
    return render_comparison(compare([make_run(folder / name, recipe=text) for name, text in recipes.items()]), "steps")


def test_curves_lie_over_each_other_on_each_of_three_axes(tmp_path: Path) -> None:
    source = page(tmp_path, one=RECIPE, two=RECIPE.replace("seed = 1234", "seed = 5"))
    for axis, label in (("steps", "step"), ("tokens", "tokens"), ("time", "seconds of training")):
        panel = re.search(rf'<div class="over {axis}">(.*?)</div></figure></div>|<div class="over {axis}">(.*)', source)
        assert panel is not None
        figures = re.findall(r"<figure>.*?</figure>", panel[0])
        assert len(figures) >= 3
        for figure in figures[:3]:
            assert {"run0", "run1"} <= set(re.findall(r'<path d="[^"]*" class="(run\d)', figure))
            assert f'<p class="x">{label}</p>' in figure
    assert source.count('type="radio"') == 3 and source.count('checked="checked"') == 1
    assert '<input type="radio" name="over" id="steps" checked="checked"/>' in source
    assert "training.seed" in source and "1234" in source


def test_the_page_stands_alone_and_is_escaped(tmp_path: Path) -> None:
    hostile = RECIPE.replace('"demo"', '"</style><script>alert(1)</script>"').replace("causal_lm", "<b>")
    source = page(tmp_path, one=RECIPE, two=hostile)
    assert not re.search(r"<script|<b>&|https?://|url\(|@import|<link|<img", source)
    assert "&lt;b&gt;" in source


def test_what_is_not_comparable_is_said_and_a_missing_axis_left_out(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", rows=[{"kind": "train", "step": step, "loss": 3.0} for step in (1, 2)])
    two = make_run(
        tmp_path / "two", recipe=RECIPE.replace("causal_lm", "mlm"), rows=[default_rows()[0] | {"tokens": None}]
    )
    write_comparison(tmp_path / "page.html", compare([one, two]), "tokens")
    source = (tmp_path / "page.html").read_text()
    assert "losses of different objectives are not comparable: causal_lm, mlm" in source
    assert 'id="tokens"' not in source and 'id="steps" checked="checked"' in source


def test_more_runs_than_colors(tmp_path: Path) -> None:
    source = page(tmp_path, **{f"run-{number}": RECIPE for number in range(10)})
    assert "run8" not in re.findall(r'class="(run\d+)"', source)
    assert "The recipes are identical." in source
