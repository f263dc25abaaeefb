"""The progress of a build, from the batches of this process, or from the records of parts that others write."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hornbook.corpora.building.parts import Parts
from hornbook.corpora.building.report import SplitCounts
from hornbook.corpora.building.request import BuildJob
from hornbook.storage.decompress import InputMeter


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a build.

    Attributes:
        documents, num_bytes, tokens: documents, their bytes in UTF-8, and their tokens, in all parts so far.
        read: bytes of the inputs read, before decompression.
        total: bytes of all inputs; None if unknown.
    """

    documents: int
    num_bytes: int
    tokens: int
    read: int
    total: int | None


OnProgress = Callable[[Progress], None]


class Watch:
    """The counts of all slices of a build so far, reported at the start and whenever they change."""

    def __init__(self, job: BuildJob, on_progress: OnProgress) -> None:
        self._job, self._on_progress = job, on_progress
        self._counts: dict[int, SplitCounts] = {}
        self._read: dict[int, int] = {}
        self._before: dict[int, int] = {}  # bytes read by earlier processes
        self._complete: set[int] = set()
        self._running: set[int] = set()
        for number in range(len(job.slices)):
            self._look_at(number)
        self._report()

    def incomplete(self) -> list[int]:
        """Return the numbers of the slices that were not finished when they were last looked at."""
        return [number for number in self._counts if number not in self._complete]

    def after_batch(self, number: int, meter: InputMeter, counts: dict[str, SplitCounts]) -> None:
        """Add the counts of a batch of a slice that this process builds, and what it read of the slice so far."""
        before = self._before.setdefault(number, self._read[number])
        self._counts[number] = sum(counts.values(), self._counts[number])
        self._read[number] = min(self._size(number), before + meter.num_bytes)
        self._report()

    def poll(self, running: Sequence[int]) -> None:
        """Look at the slices that run, and at those that ran when it was last called."""
        for number in self._running | set(running):
            self._look_at(number)
        self._running = set(running)
        self._report()

    def _look_at(self, number: int) -> None:
        parts = Parts(self._job.slice_folder(number))
        counts = sum((counts for part in parts.finished for counts in part.splits.values()), SplitCounts())
        self._counts[number] = counts
        self._read[number] = self._size(number) if parts.is_complete else min(self._size(number), counts.num_bytes)
        if parts.is_complete:
            self._complete.add(number)

    def _size(self, number: int) -> int:
        first, last, span = self._job.slices[number]
        if span is not None:
            return span.end - span.start
        return sum((self._job.sizes or [])[first:last])

    def _report(self) -> None:
        sizes = self._job.sizes
        whole = sum(self._counts.values(), SplitCounts())
        read = sum(self._read.values())
        self._on_progress(
            Progress(
                documents=whole.documents,
                num_bytes=whole.num_bytes,
                tokens=whole.tokens,
                read=read,
                total=None if sizes is None else sum(sizes),
            )
        )
