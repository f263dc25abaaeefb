import json
import os
from pathlib import Path

import pytest
from fake_run import RECIPE, default_rows, make_run, train_row

from hornbook.__main__ import main
from hornbook.errors import DataError, HornbookError, UserError
from hornbook.track.board import Board
from hornbook.track.comparison_page import render_comparison
from hornbook.track.report import write_report
from hornbook.track.run_state import is_run
from hornbook.track.runs import compare, find_runs, flatten, read_run, summarize


def test_runs_are_found_at_any_depth_and_nothing_inside_them_is_one(tmp_path: Path) -> None:
    for name in ("b", "a/deep/x", ".hidden/y"):
        make_run(tmp_path / name)
    make_run(tmp_path / "b" / "checkpoints" / "inner")
    (tmp_path / "only-a-recipe").mkdir()
    (tmp_path / "only-a-recipe" / "recipe.toml").write_text(RECIPE)
    assert find_runs(tmp_path) == [tmp_path / "a/deep/x", tmp_path / "b"]
    assert find_runs(tmp_path / "b") == [tmp_path / "b"]


def test_a_link_to_a_run_is_not_entered(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert find_runs(tmp_path) == [tmp_path / "a"]


FILES = ("metrics.jsonl", "samples.jsonl", "recipe.toml", "environment.json", "evaluation.json", "run.json")


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_a_run_stops_neither_the_board_nor_a_report(tmp_path: Path, name: str) -> None:
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other")
    (run / name).unlink()
    os.mkfifo(run / name)
    for read in (summarize, write_report):
        try:
            read(run)
        except HornbookError as error:
            assert f"{name} is not a regular file" in str(error)
    answer = Board([tmp_path]).answer({"run": [str(run), str(other)]})
    assert str(other) in [curves["id"] for curves in answer["curves"]]


@pytest.mark.parametrize("name", FILES[:3])
def test_a_link_in_a_run_shows_no_file_of_the_reader(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path / "runs" / "run")
    (run / name).replace(tmp_path / name)
    (run / name).symlink_to(tmp_path / name)
    with pytest.raises(DataError, match=f"{name} is a link"):
        write_report(run)
    answer = Board([tmp_path / "runs"]).answer({})
    assert answer["curves"] == [] and f"{name} is a link" in answer["parts"]["head"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("environment.json", "{"),
        ("environment.json", None),
        ("evaluation.json", "[]"),
        ("evaluation.json", '{"tasks": [{"name": "x"}]}'),
        ("evaluation.json", '{"tasks": [{"name": "x", "rows": [1]}]}'),
        ("evaluation.json", None),
    ],
)
def test_a_damaged_by_product_is_named_and_the_rest_is_there(tmp_path: Path, name: str, content: str | None) -> None:
    """Also a link, which may lead to a file of the reader."""
    run = make_run(tmp_path / "runs" / "run")
    whole = summarize(run)
    assert whole.damaged == ()
    if content is None:
        (run / name).replace(tmp_path / name)
        (run / name).symlink_to(tmp_path / name)
    else:
        (run / name).write_text(content)
    summary, said = summarize(run), f"{run / name}"
    assert len(summary.damaged) == 1 and summary.damaged[0].startswith(said)
    assert (summary.loss, summary.step, summary.state) == (whole.loss, whole.step, "finished")
    assert compare([run, run]).cautions == [*summary.damaged, *summary.damaged]
    page, answer = write_report(run).read_text(), Board([tmp_path / "runs"]).answer({})
    assert said in page and ("Test CPU" in page) is (name != "environment.json")
    assert len(answer["curves"]) == 1


def test_no_folder_and_no_run_are_one_line_each(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="missing here; `hornbook train` makes the folder runs; or name another"):
        find_runs(tmp_path / "missing")
    with pytest.raises(UserError, match="no run in"):
        read_run(tmp_path)
    assert find_runs(tmp_path) == []


def test_a_run_that_has_not_logged_yet_is_a_run(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    assert not is_run(tmp_path)
    (tmp_path / "environment.json").write_text("{}")
    assert is_run(tmp_path)
    summary = summarize(tmp_path)
    assert (summary.step, summary.tokens, summary.loss, summary.best_validation_loss) == (0, None, None, None)


def test_a_summary_holds_the_last_and_the_best(tmp_path: Path) -> None:
    summary = summarize(make_run(tmp_path / "run"))
    assert summary.name == "demo"
    assert (summary.step, summary.total_steps, summary.tokens) == (40, 40, 40 * 1024)
    assert summary.loss == pytest.approx(2.15)
    assert summary.validation_loss == pytest.approx(2.6)
    assert (summary.best_validation_loss, summary.best_step) == (2.5, 30)
    assert summary.bits_per_byte == 1.79  # of the evaluation, not of the last validation
    assert (summary.tokens_per_second, summary.seconds, summary.skipped_steps) == (2000.0, 20.0, 0)
    assert summary.num_sessions == 1


def test_the_mfu_of_a_summary_is_of_one_peak(tmp_path: Path) -> None:
    rates = ((1.0, 4.0), (1.2, 4.0), (8.0, 40.0), (10.0, 40.0), (12.0, 40.0))  # TFLOP/s, and the machine's peak
    rows = [train_row(step) | {"tflops": rate, "mfu": rate / peak} for step, (rate, peak) in enumerate(rates, 1)]
    assert summarize(make_run(tmp_path / "run", rows=rows)).mfu == 0.25


def test_a_number_older_than_a_newer_measurement_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*default_rows(), train_row(50), {"kind": "validation", "step": 50, "loss": 2.4}]
    run = make_run(tmp_path / "run", rows=rows)
    measured = summarize(run).measured
    assert measured["bits_per_byte"] == (1.79, 40, True)
    assert measured["validation_loss"] == (2.4, 50, False) and measured["loss"][1:] == (50, False)
    assert main(["runs", "list", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "1.790 @40" in out and "@ the step at which a number was measured" in out
    assert main(["runs", "compare", str(run), str(make_run(tmp_path / "other", rows=rows))]) == 0
    assert "1.790 @40" in capsys.readouterr().out
    page = write_report(run).read_text()
    assert '<dd class="old">1.790</dd><p>at step 40; ' in page
    assert '<dd class="own num old">1.790</dd>' in page and "There is a newer validation loss" in page
    both = render_comparison(compare([run, run]), "steps")
    assert '<span class="measured old">1.790<small>step 40</small></span>' in both
    assert '<span class="measured">2.4000<small>step 50</small></span>' in both


def test_secrets_in_a_recipe_are_shown_nowhere(tmp_path: Path) -> None:
    recipe = RECIPE.replace("corpora/mine", "https://me:s3cret@host/mine?token=s3cret")
    other = make_run(tmp_path / "other")
    run = make_run(tmp_path / "run", recipe=recipe)
    old = {"sessions": [{"command": "hornbook train https://host/x?token=s3cret"}]}
    (run / "environment.json").write_text(json.dumps(old))
    compared = compare([run, other])
    shown = [write_report(run).read_text(), render_comparison(compared, "steps"), str(compared.differences)]
    assert not any("s3cret" in text for text in shown)
    assert "https://...@host/mine?token=..." in shown[0]


def test_bits_per_byte_come_from_the_log_where_nothing_was_evaluated(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "evaluation.json").unlink()
    assert summarize(run).bits_per_byte == pytest.approx(2.6 / 1.5)


def test_rows_that_are_not_finite_count_for_nothing(tmp_path: Path) -> None:
    rows = [
        train_row(1),
        train_row(2, loss=float("nan"), skipped_steps=1),
        {"kind": "validation", "step": 2, "loss": float("nan")},
    ]
    summary = summarize(make_run(tmp_path / "run", rows=rows))
    assert (summary.step, summary.loss, summary.skipped_steps) == (2, 8.0, 1)
    assert summary.validation_loss is None


def test_the_name_is_the_folders_where_the_recipe_has_none(tmp_path: Path) -> None:
    assert summarize(make_run(tmp_path / "mine", recipe="[training]\ntokens = 5\n")).name == "mine"
    assert summarize(tmp_path / "mine").total_steps is None


def test_the_last_step_is_that_of_the_last_start(tmp_path: Path) -> None:
    """A length in epochs or tokens is steps only with the data at hand, and a resume may change it."""
    run = make_run(tmp_path / "run", recipe="[training]\nepochs = 2\n")
    for sessions, expected in (
        ([{"to_step": 40}], 40),
        ([{"to_step": 40}, {"to_step": 60}], 60),
        ([{"to_step": 40}, {"to_step": "60"}, {"to_step": True}], 40),
        ([{}], None),
    ):
        (run / "environment.json").write_text(json.dumps({"sessions": sessions}))
        assert summarize(run).total_steps == expected


def test_the_last_step_of_a_run_that_corrected_its_length_is_that_of_its_recipe(tmp_path: Path) -> None:
    """As `hornbook train auto` does: its start recorded the steps that were planned."""
    run = make_run(tmp_path / "run", recipe="[training]\nsteps = 30\n")
    (run / "environment.json").write_text(json.dumps({"sessions": [{"to_step": 40}]}))
    assert summarize(run).total_steps == 30


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("recipe.toml", "[model\n"),
        ("recipe.toml", "x = " + "9" * 5000),
        ("metrics.jsonl", 'x\n{"step": 1}\n'),
    ],
)
def test_a_malformed_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    run = make_run(tmp_path / "run")
    (run / name).write_text(content)
    with pytest.raises(DataError) as caught:
        summarize(run)
    assert str(run / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_compare_shows_where_recipes_differ_key_by_key(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one")
    two = make_run(tmp_path / "two", recipe=RECIPE.replace("4  #", "6  #").replace("seed = 1234", "epochs = 2.0"))
    comparison = compare([one, two])
    assert comparison.differences == {
        "model.num_layers": (4, 6),
        "training.epochs": (None, 2.0),
        "training.seed": (1234, None),
    }
    assert [summary.folder for summary in comparison.runs] == [str(one), str(two)]
    assert compare([one, one, one]).differences == {}


def test_flatten_dots_the_keys() -> None:
    assert flatten({"a": 1, "b": {"c": [1, 2], "d": {"e": "x"}}}) == {"a": 1, "b.c": [1, 2], "b.d.e": "x"}
    assert json.dumps(flatten({})) == "{}"
