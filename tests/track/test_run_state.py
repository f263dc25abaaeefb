import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_run import RECIPE, default_rows, make_checkpoint, make_run, train_row

from hornbook.config.build import recipe_from_dict
from hornbook.track.board import Board
from hornbook.track.comparison_page import write_comparison
from hornbook.track.environment import record_end
from hornbook.track.report import write_report
from hornbook.track.run_state import run_of, seconds_left, state_of, training_seconds
from hornbook.track.runs import compare, find_runs, read_run, summarize
from hornbook.track.units import MISSING

HOLDER = """
import sys, time
from pathlib import Path
from hornbook.storage.files import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_running_means_that_a_process_holds_the_folder(tmp_path: Path) -> None:
    """A killed one leaves its lock file and its number there, and runs no more."""
    run = make_run(tmp_path / "run", rows=[train_row(step) for step in range(1, 21)])
    assert summarize(run).state == "stopped"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(run)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert summarize(run).state == "running"
        holder.kill()
    assert (run / "lock").read_text() == f"{holder.pid}\n"
    assert summarize(run).state == "stopped"


def test_a_run_is_finished_where_its_last_step_is_saved_or_its_session_says_so(tmp_path: Path) -> None:
    assert summarize(make_run(tmp_path / "whole")).state == "finished"
    early = make_run(tmp_path / "early", rows=default_rows()[:20])
    assert summarize(early).state == "stopped"
    record_end(early / "environment.json", "finished")
    assert summarize(early).state == "finished", "stopped early by its own rule"
    sessions = json.loads((early / "environment.json").read_text())["sessions"]
    (early / "environment.json").write_text(json.dumps({"sessions": [*sessions, {"from_step": 20, "to_step": 60}]}))
    assert summarize(early).state == "stopped", "it was taken up again"


def test_a_diverged_run_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=default_rows()[:20])
    record_end(run / "environment.json", "diverged")
    assert summarize(run).state == "diverged"
    older = make_run(tmp_path / "older", rows=default_rows()[:20])
    (older / "checkpoints" / "step-00000025.diverged").mkdir()
    assert summarize(older).state == "diverged", "set aside by a version that recorded no end"
    make_checkpoint(older, 30)
    assert summarize(older).state == "stopped", "it went on from before"


def test_an_imported_model_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "gpt2"
    recipe = {"model": {"family": "gpt"}, "objective": {"name": "causal_lm"}, "training": {"seed": 1}}
    checkpoint = make_checkpoint(folder, 0, source={"folder": "theirs"}, recipe=recipe)
    assert find_runs(tmp_path) == [folder]
    summary = summarize(folder)
    assert (summary.state, summary.objective, summary.step, summary.total_steps) == ("imported", "causal_lm", 0, None)
    assert run_of(checkpoint) == folder
    assert summary.progress == MISSING, "it has no steps, and not 0 of a length either"
    assert "step 0" not in str(Board([tmp_path]).answer({})["parts"]["runs"])
    write_comparison(tmp_path / "both.html", compare([folder, make_run(tmp_path / "own")]), "steps")
    (row,) = (row for row in (tmp_path / "both.html").read_text().split("<tr") if ">imported<" in row)
    assert ">0<" not in row
    assert "training" not in read_run(folder).recipe, "that of a recipe's defaults, which nobody trained by"
    assert summary.num_parameters == recipe_from_dict(recipe | {"training": {"steps": 1}}).num_parameters()
    page = write_report(folder).read_text()
    assert f"{summary.num_parameters:,} parameters without the token table" in page


def test_what_an_imported_model_has_not_is_compared_among_the_others(tmp_path: Path) -> None:
    recipe = {"model": {"family": "gpt", "num_layers": 3}, "objective": {"name": "causal_lm"}}
    make_checkpoint(tmp_path / "gpt2", 0, source={"folder": "theirs"}, recipe=recipe)
    texts = [RECIPE, RECIPE.replace("steps = 40", "steps = 50")]
    runs = [make_run(tmp_path / str(number), recipe=text) for number, text in enumerate(texts)]
    differences = compare([runs[0], tmp_path / "gpt2"]).differences
    assert {key.partition(".")[0] for key in differences} == {"name", "model"}
    assert compare([*runs, tmp_path / "gpt2"]).differences["training.steps"] == (40, 50, None)


def test_checkpoints_that_are_copied_elsewhere_are_no_run(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "copies", 40, state={"step": 40})
    assert find_runs(tmp_path) == []
    assert run_of(checkpoint) is None and run_of(tmp_path / "step-00000040") is None


def test_the_last_step_is_the_one_that_was_saved(tmp_path: Path) -> None:
    """Stopped at step 124 by a signal, while every tenth is logged."""
    rows = [train_row(step) for step in range(10, 121, 10)]
    run = make_run(tmp_path / "run", rows=rows)
    make_checkpoint(run, 124, state={"step": 124, "tokens": 124 * 1024, "seconds": 62.0, "skipped_steps": 1})
    summary = summarize(run)
    assert (summary.step, summary.tokens, summary.seconds, summary.skipped_steps) == (124, 124 * 1024, 62.0, 1)
    (run / "checkpoints" / "step-00000124" / "state.json").write_text("{")
    assert (summarize(run).step, summarize(run).tokens) == (124, 120 * 1024), "a damaged one hides no run"
    (run / "checkpoints" / "step-00000124" / "manifest.json").unlink()
    assert summarize(run).step == 120


@pytest.mark.parametrize("ended", ["", "running", 5, None])
def test_what_a_session_cannot_say_is_passed_over(tmp_path: Path, ended: object) -> None:
    assert state_of(tmp_path, [{"ended": ended}], None) == "stopped"


def test_training_seconds_add_up_over_sessions_that_count_from_zero() -> None:
    assert training_seconds([]) is None
    assert training_seconds([{"seconds": 5.0}, {"seconds": 9.0}]) == 9.0
    assert training_seconds([{"seconds": 5.0}, {"seconds": 9.0}, {}, {"seconds": 2.0}, {"seconds": 4.0}]) == 13.0


def test_seconds_left() -> None:
    assert seconds_left({"step": 10, "tokens": 1000, "tokens_per_second": 50.0}, 30) == 40.0
    assert seconds_left({"step": 30, "tokens": 3000, "tokens_per_second": 50.0}, 30) == 0.0
    assert seconds_left({"step": 0, "tokens": 0, "tokens_per_second": 50.0}, 30) is None
    assert seconds_left({"step": 1, "tokens": 5, "tokens_per_second": 0.0}, 30) is None
