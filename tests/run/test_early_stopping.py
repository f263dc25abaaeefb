"""A run ends when what its best checkpoint is chosen by stops improving, and says so; resuming changes nothing."""

import math

import pytest
from cases import mostly_slow
from tiny_mixtures import build_corpora, run_mixture
from tiny_runs import digest, metrics_without_time, run_tiny, stop_after

from hornbook import checkpoint
from hornbook.config import EvaluationConfig
from hornbook.engine.state import Progress
from hornbook.errors import StoppedBySignal, UserError
from hornbook.run.early_stopping import note_measurement, why_stopped

STALLING = (
    "--optimizer.learning-rate=1e-12",
    "--evaluation.every-steps=2",
    "--evaluation.max-windows=10",
    "--evaluation.early-stopping-patience=2",
    "--evaluation.early-stopping-min-delta=0.01",
    "--training.steps=40",
    "--checkpoint.every-steps=3",
)
"""The rate is too small to learn anything, so only the first measurement, after step 2, is an improvement."""


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    return build_corpora(tmp_path_factory.mktemp("corpora"))


def stale_after(values, *, min_delta=0.0, higher=False, progress=None):
    """The counter after each of these measurements."""
    config, progress, counts = EvaluationConfig(early_stopping_min_delta=min_delta), progress or Progress(), []
    for value in values:
        note_measurement(progress, config, "validation", value, higher=higher)
        counts.append(progress.stale_measurements)
    return counts


@pytest.mark.parametrize(
    ("values", "options", "counts"),
    [
        ([3.0, 2.5, 2.5, 2.6, 2.4], {}, [0, 0, 1, 2, 0]),
        ([3.0, 2.95, 2.91, 2.89, 2.8], {"min_delta": 0.1}, [0, 1, 2, 0, 1]),  # many small steps make a large one
        ([0.1, 0.2, 0.2, 0.15, 0.3], {"higher": True}, [0, 0, 1, 2, 0]),
        ([math.nan, 3.0, math.inf, math.nan, 2.0], {}, [1, 0, 1, 2, 0]),
    ],
)
def test_what_counts_as_an_improvement(values, options, counts):
    assert stale_after(values, **options) == counts


def test_another_measure_starts_over():
    progress = Progress(stopping_by="lambada/accuracy", stopping_value=0.9, stale_measurements=5)
    assert stale_after([2.0, 2.0], progress=progress) == [0, 1]
    assert (progress.stopping_by, progress.stopping_value) == ("validation", 2.0)


def test_no_patience_never_stops():
    stale = Progress(stale_measurements=10**6)
    assert why_stopped(stale, EvaluationConfig()) is None
    assert why_stopped(stale, EvaluationConfig(early_stopping_patience=10**6)) is not None


def test_a_run_that_stops_to_improve_ends_saves_and_says_why(corpora, tmp_path, capfd):
    summary = run_mixture(tmp_path, corpora, *STALLING)
    rows = [row for row in metrics_without_time(tmp_path) if row["kind"] == "validation"]
    assert [row["step"] for row in rows] == [2, 3, 4]  # with each checkpoint, too
    assert (summary["step"], summary["stopped_early"]) == (4, True)
    saved = checkpoint.load(tmp_path / "run" / "checkpoints" / "step-00000004").documents["state"]
    assert (saved["stale_measurements"], saved["stopping_value"]) == (2, rows[0]["loss"])
    message = capfd.readouterr().err
    loss = f"{rows[0]['loss']:.6g}"
    assert f"stopped early after step 4: the validation loss ({loss}) has not improved by more than 0.01" in message
    assert "for 2 measurements; raise evaluation.early_stopping_patience to continue" in message
    again = run_mixture(tmp_path, corpora, *STALLING)
    assert (again["step"], again["stopped_early"]) == (4, True)
    assert "is finished: 4 steps; nothing to do" in (message := capfd.readouterr().err) and "stopped early" in message
    patient = run_mixture(tmp_path, corpora, *STALLING, "--evaluation.early-stopping-patience=4")
    assert patient["step"] == 8


@pytest.mark.parametrize("step", mostly_slow([3, 4]))
def test_a_resumed_run_stops_where_an_uninterrupted_one_does(corpora, tmp_path, monkeypatch, step):
    run_mixture(tmp_path / "whole", corpora, *STALLING)
    with monkeypatch.context() as patched:
        stop_after(patched, step)
        with pytest.raises(StoppedBySignal):
            run_mixture(tmp_path / "parts", corpora, *STALLING)
    summary = run_mixture(tmp_path / "parts", corpora, *STALLING)
    assert (summary["step"], summary["stopped_early"]) == (4, True)
    assert metrics_without_time(tmp_path / "parts") == metrics_without_time(tmp_path / "whole")
    if step == 3:
        assert digest(tmp_path / "parts", 4) == digest(tmp_path / "whole", 4)


def test_a_task_may_decide(corpora, tmp_path):
    by_task = ("--evaluation.tasks=bits_per_byte", "--checkpoint.best-by=bits_per_byte/bits_per_byte")
    summary = run_mixture(tmp_path, corpora, *STALLING, *by_task, f"--evaluation.task-data={corpora[0]}")
    assert (summary["step"], summary["stopped_early"], summary["best_by"]) == (4, True, by_task[1].partition("=")[2])


def test_a_run_that_improves_continues(corpora, tmp_path):
    improving = ("--optimizer.learning-rate=1e-2", "--training.steps=8", "--evaluation.early-stopping-min-delta=0")
    summary = run_mixture(tmp_path, corpora, *STALLING, *improving)
    assert (summary["step"], summary["stopped_early"]) == (8, False)


def test_without_validation_data_there_is_nothing_to_go_by(tmp_path):
    with pytest.raises(UserError, match="the run has no validation data"):
        run_tiny(tmp_path, "--evaluation.early-stopping-patience=2")
