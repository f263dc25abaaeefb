"""``hornbook verify``: what a user sees of resumes and layouts on a recipe of their own."""

import json
import os
import signal

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


@pytest.mark.slow
def test_a_recipe_without_data_is_verified_on_random_tokens(tmp_path, monkeypatch, capfd):
    """The bundled ones name neither data nor, some, a vocabulary; labels cannot be made up."""
    monkeypatch.chdir(tmp_path)
    tiny = ["--model.hidden-size=16", "--model.num-layers=1", "--data.sequence-length=16", "--steps=2", "--threads=1"]
    assert main(["verify", "resume", "demo", *tiny, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["equal"]
    assert main(["verify", "resume", "bert-base-wikitext2", *tiny, "--model.num-heads=2", "--json"]) == 0
    labels = "--objective.name=classification"
    assert main(["verify", "topology", "bert-tiny", *tiny, "--model.num-heads=2", labels]) == 2
    assert '(without data.train), objective.name = "classification"' in capfd.readouterr().err


@pytest.mark.parametrize("processes", [[], ["--processes", "1"]], ids=" ".join)
def test_one_process_has_nothing_to_compare(tmp_path, monkeypatch, processes):
    """And says so before PyTorch is imported."""
    monkeypatch.chdir(tmp_path)
    words = ["verify", "topology", "demo", *processes]
    code = f"import sys; from hornbook.__main__ import main; print(main({words}), 'torch' in sys.modules)"
    done = python("-c", code)
    assert done.stdout == "2 False\n"
    assert "error: nothing to compare with one process; add --processes 2 or more" in done.stderr


@pytest.mark.parametrize("nth", [2, 6, 8, 12])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_verification_and_leaves_nothing(recipe, tmp_path, capfd, monkeypatch, name, nth):
    """In the whole run and its last step, before the stop that it makes itself, and in the last step of all."""
    record, steps = TrainingRun.record, []

    def interrupted(run, result):
        record(run, result)
        steps.append(run.state.progress.step)
        if len(steps) == nth:
            os.kill(os.getpid(), getattr(signal, name))

    monkeypatch.setattr(TrainingRun, "record", interrupted)
    assert main(["verify", "resume", *recipe, "--output", "both"]) == 75
    *_, last = capfd.readouterr().err.splitlines()
    assert last == f"hornbook: stopped by {name}; run the same command again"
    assert not (tmp_path / "both").exists()


def test_a_resume_that_differs_fails_and_keeps_both_runs(recipe, tmp_path, capfd, monkeypatch):
    record, steps = TrainingRun.record, []

    def disturb(run, result):
        record(run, result)
        steps.append(run.state.progress.step)
        if steps.count(4) == 2 and steps[-1] == 4:
            next(run.state.model.parameters()).data += 1e-3

    monkeypatch.setattr(TrainingRun, "record", disturb)
    assert main(["verify", "resume", *recipe, "--output", "both"]) == 1
    assert "differs from the uninterrupted one in weights, optimizer state" in capfd.readouterr().err
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
    result = json.loads(done.stdout)
    layouts = {row["layout"]: row for row in result["layouts"]}
    pipelines = {f"pipeline 2, {schedule}" for schedule in ("gpipe", "1f1b", "interleaved", "zero-bubble", "v-shaped")}
    assert {"replicate 2", "shard 2", "tensor 2"} | pipelines == set(layouts) and result["skipped"] == []
    for name, row in layouts.items():
        tolerance = 0.0 if name in pipelines else 1e-6
        assert row["gradients"] <= tolerance and row["losses"] <= tolerance


@pytest.mark.slow
def test_products_are_compared_and_what_does_not_divide_is_skipped_by_one_line(recipe):
    """Two heads; a recipe whose own layout is a pipeline with listed layers keeps it."""
    own = ["--parallel.pipeline-parallel=2", "--parallel.layers-per-stage=0,2", "--model.num-layers=2"]
    words = [*recipe, *own, "--training.global-batch-size=8", "--steps", "2", "--processes", "4"]
    done = python("-m", "hornbook", "verify", "topology", *words)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr and "redistributing" not in done.stderr
    rows = [line.rsplit(maxsplit=2) for line in done.stdout.splitlines()[1:] if not line.startswith("skipped")]
    assert [row[0] for row in rows] == [
        "pipeline 2 x replicate 2, 1f1b",
        "replicate 4",
        "shard 4",
        "pipeline 4, gpipe",
        "pipeline 4, 1f1b",
        "pipeline 4, zero-bubble",
        "replicate 2 x shard 2",
        "replicate 2 x tensor 2",
        "shard 2 x tensor 2",
        "pipeline 2 x shard 2, 1f1b",
        "pipeline 2 x tensor 2, 1f1b",
    ]
    assert max(float(cell) for row in rows for cell in row[1:]) <= 1e-6
    skipped = [line for line in done.stdout.splitlines() if line.startswith("skipped")]
    assert skipped == [
        "skipped tensor 4: tensor_parallel must divide num_heads, which is 2; change one of them",
        "skipped pipeline 4, interleaved: a pipeline of 8 stages needs at least 6 layers; add some",
        "skipped pipeline 4, v-shaped: a pipeline of 8 stages needs at least 6 layers; add some",
    ]
