"""The logged training loss is the mean over all steps since the last row, wherever the run was stopped."""

from pathlib import Path

import pytest
import tiny_runs
from cases import mostly_slow
from tiny_encoder_runs import build_sentences, encoder, on_corpus
from tiny_text import build_tiny

from hornbook.errors import DivergedError, StoppedBySignal
from hornbook.run.training_run import TrainingRun


def rows_of(folder: Path) -> dict[int, dict[str, float]]:
    return {row["step"]: row for row in tiny_runs.metrics_without_time(folder) if row["kind"] == "train"}


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_the_loss_is_the_mean_over_the_interval(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides: tuple[str, ...] = ()
    if family == "bert":
        overrides = (*encoder("bert"), *on_corpus(build_sentences(tmp_path / "corpus")))
    steps = []
    record = TrainingRun.record
    monkeypatch.setattr(TrainingRun, "record", lambda run, result: (steps.append(result), record(run, result)))
    tiny_runs.run_tiny(tmp_path, *overrides, "--tracking.log-every-steps=3")
    rows = rows_of(tmp_path)
    assert list(rows) == [1, 3, 6, 8]
    for last, first in ((1, 1), (3, 2), (6, 4), (8, 7)):
        interval = steps[first - 1 : last]
        for term in interval[0].terms:
            mean = sum(step.sums[term] for step in interval) / sum(step.counts[term] for step in interval)
            if len(interval[0].terms) > 1:
                assert rows[last][term] == pytest.approx(mean, rel=1e-12)
        assert rows[last]["last_loss"] == interval[-1].loss
    means = [step.loss for step in steps[3:6]]
    assert min(means) < rows[6]["loss"] < max(means)
    assert len({step.counts["mlm"] for step in steps}) > 1 if family == "bert" else True, "else a plain mean would do"


@pytest.mark.parametrize("step", mostly_slow([4, 2, 5]))
def test_a_stop_within_an_interval_changes_no_row(step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--tracking.log-every-steps=3",)
    tiny_runs.run_tiny(tmp_path / "whole", *options)
    with monkeypatch.context() as patch:
        tiny_runs.stop_after(patch, step)
        with pytest.raises(StoppedBySignal):
            tiny_runs.run_tiny(tmp_path / "resumed", *options)
    tiny_runs.run_tiny(tmp_path / "resumed", *options)
    assert rows_of(tmp_path / "resumed") == rows_of(tmp_path / "whole")


def test_a_run_ends_with_its_last_and_best_losses(tmp_path: Path) -> None:
    """Also where there was nothing left to do."""
    build_tiny(tmp_path / "corpus")
    overrides = (*on_corpus(tmp_path / "corpus"), "--evaluation.every-steps=2", "--optimizer.learning-rate=0.1")
    for _ in range(2):
        result = tiny_runs.run_tiny(tmp_path, *overrides)
        rows = tiny_runs.metrics_without_time(tmp_path)
        losses = {row["step"]: row["loss"] for row in rows if row["kind"] == "validation"}
        assert len(losses) >= 4
        assert result["loss"] == rows_of(tmp_path)[8]["loss"]
        assert result["validation_loss"] == losses[8]
        assert result["best_validation_loss"] == min(losses.values()) == losses[result["best_validation_step"]]


def test_a_step_that_is_skipped_does_not_count(tmp_path: Path) -> None:
    """Its loss is not finite, and one number would hide those of all others."""
    overrides = ("--schedule.name=by_step", "--schedule.factors=0=1,4=1e33,5=1", "--optimizer.clip-norm=none")
    with pytest.raises(DivergedError):
        tiny_runs.run_tiny(tmp_path, *overrides, "--tracking.log-every-steps=7", "--checkpoint.every-steps=30")
    row = rows_of(tmp_path)[7]
    assert row["skipped_steps"] > 0
    assert row["loss"] == pytest.approx(4.2, abs=0.5) and row["last_loss"] is None
    assert rows_of(tmp_path)[8]["loss"] is None, "there was no other step"
