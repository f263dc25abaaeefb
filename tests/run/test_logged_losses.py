"""The logged training loss is the mean over all steps since the last row, wherever the run was stopped."""

from pathlib import Path

import pytest
import tiny_runs
from tiny_encoder_runs import build_sentences, encoder, on_corpus

from hornbook.errors import StoppedBySignal
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


@pytest.mark.parametrize("step", [2, 4, 5])
def test_a_stop_within_an_interval_changes_no_row(step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--tracking.log-every-steps=3",)
    tiny_runs.run_tiny(tmp_path / "whole", *options)
    with monkeypatch.context() as patch:
        tiny_runs.stop_after(patch, step)
        with pytest.raises(StoppedBySignal):
            tiny_runs.run_tiny(tmp_path / "resumed", *options)
    tiny_runs.run_tiny(tmp_path / "resumed", *options)
    assert rows_of(tmp_path / "resumed") == rows_of(tmp_path / "whole")
