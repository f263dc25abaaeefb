"""Deliver a run's entries to its trackers: in order, from one thread per tracker, without affecting the run.

::

    row of metrics.jsonl ─► numbers_of ─► queue of tensorboard ─► thread ─► tracker.numbers(step, values)
    sample, histograms ───────────────►   queue of wandb ───────► thread ─► ...

A tracker that raises an exception is dropped with one warning. One that hangs, for example on a network failure, only
fills its queue: entries are small. The start of a run waits at most 20 seconds for it, the end at most a minute. The
price of the threads: a killed process loses what its trackers had not yet written, which is in ``metrics.jsonl``.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import isfinite
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from types import TracebackType
from typing import Any, TypeAlias

from hornbook.errors import DataError, StoppedBySignal, StorageError
from hornbook.storage.files import replace_file
from hornbook.storage.json_files import dump_json, read_json
from hornbook.track.trackers.tracker import Ended, Histogram, Open, TrackedRun, Tracker, open_function
from hornbook.wording import counted

SECONDS_TO_OPEN, SECONDS_AT_THE_END = 20.0, 60.0
IDS = "trackers.json"
"""File in a run's folder: the run's id by tracker."""

_Entry: TypeAlias = Callable[[Tracker], None]


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a row of ``metrics.jsonl`` by their names for trackers.

    ``{"kind": "validation", "step": 20, "loss": 3.1}`` -> ``{"validation/loss": 3.1}``; a task's number is
    ``task/TASK/METRIC``, and those of a block-sparse pattern are ``topology/LAYER/...``.
    """
    kind = row["kind"]
    if kind == "task":
        given = {f"task/{row['task']}/{row['metric']}": row["value"]}
    else:
        prefix = f"topology/{row['layer']}" if kind == "topology" else kind
        given = {f"{prefix}/{key}": value for key, value in row.items() if key != "step"}
    return {
        name: float(value)
        for name, value in given.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    }


class Trackers(AbstractContextManager["Trackers"]):
    """The open trackers of a run; leaving the block closes them.

    Args:
        names: the value of ``tracking.trackers``.
        run: the run, without a ``run_id``; ids of earlier sessions are read from the run's folder, and new ones added.
        warn: called once, from the caller's thread, when a tracker fails.

    Raises:
        UserError: there is no such tracker, or its library is not installed.
        DataError: the file of the ids is damaged.
    """

    def __init__(self, names: Sequence[str], run: TrackedRun, warn: Callable[[str], None]) -> None:
        self._warn, self._folder, self._ids = warn, run.folder, read_ids(run.folder / IDS)
        functions = {name: open_function(name) for name in names}
        self._deliveries = [
            _Delivery(name, function, replace(run, run_id=self._ids.get(name))) for name, function in functions.items()
        ]
        until = monotonic() + SECONDS_TO_OPEN
        for delivery in self._deliveries:
            if not delivery.is_ready.wait(max(0.0, until - monotonic())):
                warn(f"tracker {delivery.name} is slow to open; training starts, and its records are queued")
        self._look_after()

    def row(self, row: Mapping[str, Any]) -> None:
        """Send the numbers of a row of ``metrics.jsonl``."""
        step, values = row["step"], numbers_of(row)
        if values:
            self._send(lambda tracker: tracker.numbers(step, values))

    def sample(self, row: Mapping[str, Any]) -> None:
        """Send a row of ``samples.jsonl``."""
        step, text = row["step"], f"{row['prompt']}{row['text']}"
        self._send(lambda tracker: tracker.text(step, "sample", text))

    def histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        """Send the histograms of a step."""
        self._send(lambda tracker: tracker.histograms(step, histograms))

    def _send(self, entry: _Entry) -> None:
        for delivery in self._deliveries:
            delivery.queue.put(entry)
        self._look_after()

    def _look_after(self) -> None:
        """Save the ids of opened trackers, and drop the trackers that have failed."""
        opened = {delivery.name: delivery.run_id for delivery in self._deliveries if delivery.run_id is not None}
        if opened.items() - self._ids.items():
            self._ids |= opened
            try:
                replace_file(self._folder / IDS, dump_json(self._ids))
            except StorageError as error:
                self._warn(f"a resume would start new runs in the trackers: {error}")
        for delivery in [delivery for delivery in self._deliveries if delivery.failure]:
            self._warn(f"tracker {delivery.name} {delivery.failure}")
            self._deliveries.remove(delivery)

    def close(self, ended: Ended) -> None:
        """Wait until all entries are delivered and the trackers closed, for at most a minute."""
        for delivery in self._deliveries:
            delivery.queue.put(lambda tracker: tracker.close(ended))
            delivery.queue.put(None)
        until = monotonic() + SECONDS_AT_THE_END
        for delivery in self._deliveries:
            delivery.thread.join(max(0.0, until - monotonic()))
            if delivery.thread.is_alive():
                left = delivery.queue.qsize() - 2 + delivery.is_ready.is_set()  # one is being delivered
                self._warn(f"tracker {delivery.name} does not respond: {counted(max(left, 0), 'record')} not delivered")
        self._look_after()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        is_signal = isinstance(error, StoppedBySignal | KeyboardInterrupt)
        self.close("finished" if error is None else "stopped" if is_signal else "failed")


class _Delivery:
    """A tracker with its queue and its thread, which opens it and ends after the first failure."""

    def __init__(self, name: str, function: Open, run: TrackedRun) -> None:
        self.name, self._open, self._run = name, function, run
        self.queue: SimpleQueue[_Entry | None] = SimpleQueue()
        self.is_ready = threading.Event()
        """Set when the tracker is open, or cannot be opened."""
        self.run_id: str | None = None
        self.failure: str | None = None
        self.thread = threading.Thread(target=self._deliver, name=f"tracker {name}", daemon=True)
        self.thread.start()

    def _deliver(self) -> None:
        doing = "cannot be opened"
        try:
            tracker = self._open(self._run)
            self.run_id, doing = tracker.run_id, "failed"
            self.is_ready.set()
            while (entry := self.queue.get()) is not None:
                entry(tracker)
        except Exception as error:
            described = " ".join(f"{type(error).__name__}: {error}".split())
            self.failure = f"{doing}, training continues without it: {described}"
            self.is_ready.set()


def read_ids(path: Path) -> dict[str, str]:
    """Return the run's id by tracker; none without a file. Raises DataError if it is damaged."""
    if not path.exists():
        return {}
    found = read_json(path, "ids of the run in its trackers")
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise DataError(f"{path}: expected an id by tracker; restore the file, or remove it to start new runs")
    return found
