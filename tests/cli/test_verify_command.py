"""``hornbook verify``: what a user sees of resumes and layouts on a recipe of their own."""

import json

import pytest
from ranks import python
from tiny_runs import RECIPE

from hornbook.cli.main import main
from hornbook.run.training_run import TrainingRun


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(RECIPE)
    return [str(tmp_path / "tiny.toml"), "--device", "cpu", "--threads", "1", "--training.micro-batch-size", "1"]


def test_a_resumed_run_equals_a_whole_one(recipe, tmp_path, capfd):
    assert main(["verify", "resume", *recipe, "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["equal"] and [row["different"] for row in result["rows"]] == [0, 0, 0, 0]
    compared = {row["what"]: row["compared"] for row in result["rows"]}
    assert compared["optimizer state"] == 2 * compared["weights"] > 0
    assert compared["rows of metrics"] == 6
    assert not list((tmp_path / "runs").iterdir())


def test_a_resume_that_differs_fails_and_keeps_both_runs(recipe, tmp_path, capfd, monkeypatch):
    record, steps = TrainingRun.record, []

    def disturb(run, result):
        record(run, result)
        steps.append(run.state.progress.step)
        if steps.count(4) == 2 and steps[-1] == 4:
            next(run.state.model.parameters()).data += 1e-3

    monkeypatch.setattr(TrainingRun, "record", disturb)
    assert main(["verify", "resume", *recipe, "--output", "both"]) == 1
    assert "the resumed run differs in weights, optimizer state" in capfd.readouterr().err
    assert {path.name for path in (tmp_path / "both").iterdir()} == {"whole", "interrupted"}
    assert main(["verify", "resume", *recipe, "--output", "both"]) == 2
    assert "both exists: remove it, or choose another --output" in capfd.readouterr().err


@pytest.mark.slow
def test_ranks_resume_and_scale(recipe):
    done = python("-m", "hornbook", "verify", "resume", *recipe, "--processes", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"] == 2
    done = python("-m", "hornbook", "verify", "topology", *recipe, "--processes", "2", "--json")
    assert done.returncode == 0, done.stderr
    layouts = {row["layout"]: row for row in json.loads(done.stdout)["layouts"]}
    pipelines = {f"pipeline 2, {schedule}" for schedule in ("gpipe", "1f1b", "interleaved", "zero-bubble", "v-shaped")}
    assert {"replicate 2", "shard 2", "tensor 2"} | pipelines == set(layouts)
    for name, row in layouts.items():
        tolerance = 0.0 if name in pipelines else 1e-6
        assert row["gradients"] <= tolerance and row["losses"] <= tolerance
