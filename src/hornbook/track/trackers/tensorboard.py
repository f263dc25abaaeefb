"""TensorBoard: event files in ``tensorboard/`` of the run's folder. ``tensorboard --logdir runs`` shows all runs."""

import textwrap
from collections.abc import Mapping

from torch.utils.tensorboard import SummaryWriter

from hornbook.track.trackers.tracker import Ended, Histogram, TrackedRun


class TensorBoard:
    """A tracker that writes event files; those of a resumed run supersede the steps that it repeats."""

    def __init__(self, run: TrackedRun) -> None:
        self.run_id = "tensorboard"
        self._writer = SummaryWriter(run.folder / "tensorboard", purge_step=run.step + 1 if run.run_id else None)
        rows = "".join(f"| {key} | {value} |\n" for key, value in run.config.items())
        self._writer.add_text("recipe", f"| option | value |\n|---|---|\n{rows}", run.step)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def text(self, step: int, name: str, text: str) -> None:
        """See ``Tracker``; indented, so that Markdown in it is not interpreted."""
        self._writer.add_text(name, textwrap.indent(text, "    ", lambda _: True), step)

    def histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        """See ``Tracker``; sums are computed from the bins' centers."""
        for name, histogram in histograms.items():
            pairs = list(zip(histogram.centers, histogram.counts, strict=True))
            self._writer.add_histogram_raw(
                name,
                min=histogram.edges[0],
                max=histogram.edges[-1],
                num=sum(histogram.counts),
                sum=sum(center * count for center, count in pairs),
                sum_squares=sum(center**2 * count for center, count in pairs),
                bucket_limits=list(histogram.edges[1:]),
                bucket_counts=list(histogram.counts),
                global_step=step,
            )

    def close(self, ended: Ended) -> None:
        self._writer.close()


open_tracker = TensorBoard
