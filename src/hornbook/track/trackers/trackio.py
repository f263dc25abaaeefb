"""trackio: a project in ``TRACKIO_DIR``, by default in Hugging Face's cache; ``trackio show`` draws it."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from contextvars import copy_context
from secrets import token_hex

import trackio

from hornbook.track.trackers.tracker import Ended, Histogram, TrackedRun


class Trackio:
    """A tracker that logs to a trackio run, identified by its name; trackio's output goes to standard error."""

    def __init__(self, run: TrackedRun) -> None:
        self.run_id = run.run_id or f"{run.name}-{token_hex(3)}"
        options = {"config": dict(run.config), "resume": "allow", "embed": False}
        with redirect_stdout(sys.stderr):  # in a separate context, or trackio would end the run again at exit
            self._run = copy_context().run(trackio.init, project=run.project, name=self.run_id, **options)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def text(self, step: int, name: str, text: str) -> None:
        self._run.log({name: text}, step=step)

    def histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        drawn = {
            name: trackio.Histogram(np_histogram=(list(histogram.counts), list(histogram.edges)))
            for name, histogram in histograms.items()
        }
        self._run.log(drawn, step=step)

    def close(self, ended: Ended) -> None:
        """See ``Tracker``; trackio does not record how a run ended."""
        with redirect_stdout(sys.stderr):
            self._run.finish()


open_tracker = Trackio
