"""Trackers that are registered for a test: one that keeps what it gets, and ones that fail or hang."""

import threading
from collections.abc import Mapping

from hornbook.track.trackers.tracker import Histogram, TrackedRun, register_tracker

OPENED: list["Recording"] = []
"""Of this process, the newest last."""


class Recording:
    """Keeps what it gets."""

    def __init__(self, run: TrackedRun) -> None:
        self.run, self.run_id = run, run.run_id or f"id-{len(OPENED)}"
        self.entries: list[tuple[str, int, object]] = []
        self.ended: str | None = None
        self.threads: set[str] = set()
        OPENED.append(self)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self.threads.add(threading.current_thread().name)
        self.entries.append(("numbers", step, dict(values)))

    def text(self, step: int, name: str, text: str) -> None:
        self.entries.append((name, step, text))

    def histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        self.entries.append(("histograms", step, dict(histograms)))

    def close(self, ended: str) -> None:
        self.ended = ended

    def of_kind(self, kind: str) -> dict[int, object]:
        """The entries of a kind by step."""
        return {step: entry for name, step, entry in self.entries if name == kind}


class Failing(Recording):
    """Raises at the third numbers."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        super().numbers(step, values)
        if len(self.entries) == 3:
            raise ConnectionError("the server\nis gone")


class Hanging(Recording):
    """Never comes back from its first entry until it is let go."""

    let_go = threading.Event()

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self.let_go.wait()


def closed_door(run: TrackedRun) -> Recording:
    """Fail to open."""
    raise PermissionError("no key")


class Slow(Recording):
    """Opens when it is let go."""

    let_go = threading.Event()

    def __init__(self, run: TrackedRun) -> None:
        self.let_go.wait()
        super().__init__(run)


register_tracker("slow")(Slow)
register_tracker("recording")(Recording)
register_tracker("failing")(Failing)
register_tracker("hanging")(Hanging)
register_tracker("closed-door")(closed_door)
