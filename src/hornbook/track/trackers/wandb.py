"""Weights & Biases: a run that keeps its id over all sessions, online or, with ``WANDB_MODE=offline``, in ``wandb/``.

Entries have their step as a metric, which is the axis of all charts: W&B's own counter only increases, and would drop
what a resumed run logs again.
"""

from collections.abc import Mapping
from secrets import token_hex

import wandb

from hornbook.track.trackers.tracker import Ended, Histogram, TrackedRun


class WeightsAndBiases:
    """A tracker that logs to a W&B run, without the console output."""

    def __init__(self, run: TrackedRun) -> None:
        self.run_id = run.run_id or token_hex(4)
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=self.run_id,
            resume="allow",
            dir=run.folder,
            config=dict(run.config),
            allow_val_change=True,
            settings=wandb.Settings(console="off"),
        )
        self._run.define_metric("*", step_metric="step")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def text(self, step: int, name: str, text: str) -> None:
        """See ``Tracker``; a table of one row, since W&B has no type for plain text."""
        self._run.log({"step": step, name: wandb.Table(columns=["step", "text"], data=[[step, text]])})

    def histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        drawn = {
            name: wandb.Histogram(np_histogram=(list(histogram.counts), list(histogram.edges)))
            for name, histogram in histograms.items()
        }
        self._run.log({"step": step, **drawn})

    def close(self, ended: Ended) -> None:
        """See ``Tracker``; uploads pending entries."""
        self._run.finish(exit_code=0 if ended == "finished" else 1)


open_tracker = WeightsAndBiases
