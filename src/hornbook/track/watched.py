"""A run that the board watches, read in a thread of its own, so that a disk that does not answer stops no other run.

::

    run = WatchedRun(Path("runs/mine"), 0)
    run.start(is_shown=True); run.wait(5.0)     read what changed, but wait no longer than 5 s
    run.now                                     what was last read: rows, summary, or a problem
    run.waiting                                 None, or the seconds for which the disk has not answered

``now`` is replaced as a whole, so no reader of it needs a lock. The price: rows are copied when new ones are added.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hornbook.errors import HornbookError
from hornbook.storage.system import is_locked
from hornbook.track import metrics
from hornbook.track.curves import run_id
from hornbook.track.runs import Row, RunFiles, RunSummary, flatten, plain_value, read_run, summary_of

_WATCHED = (
    "metrics.jsonl",
    "samples.jsonl",
    "evaluation.json",
    "environment.json",
    "recipe.toml",
    "notes.json",
    "checkpoints",
)


class Background:
    """Runs one action at a time in a thread that neither its starter nor the end of the process has to wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._began = 0.0

    def start(self, action: Callable[[], None]) -> None:
        """Start an action, unless one is running."""
        with self._lock:
            if self.waiting is None:
                thread = threading.Thread(target=action, daemon=True)
                self._began = time.monotonic()
                thread.start()
                self._thread = thread  # only now: others may wait for it, which a thread allows once it has started

    def wait(self, seconds: float) -> None:
        """Wait until the action has run, or has been running for ``seconds`` in all."""
        thread = self._thread
        if thread is not None:
            thread.join(max(0.0, self._began + seconds - time.monotonic()))

    @property
    def waiting(self) -> float | None:
        """Seconds since the action that is running began; None if none is."""
        thread = self._thread
        return time.monotonic() - self._began if thread is not None and thread.is_alive() else None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was last read of a run; ``problem`` is set if that failed.

    Attributes:
        token: identifies the log of these rows on a page; it changes when the log is replaced.
        files: the files, None if they were not read or are no longer held.
        recipe: values of the recipe by dotted key, as texts.
        recency: whether the run is running, and when its log was written; the greatest is the newest.
    """

    token: str = field(default_factory=lambda: secrets.token_hex(4))
    stamp: object = None
    files: RunFiles | None = None
    samples: tuple[Row, ...] = ()
    summary: RunSummary | None = None
    recipe: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    recency: tuple[bool, float] = (False, 0.0)


class WatchedRun(Background):
    """A run of the board.

    Args:
        folder: its folder.
        number: its number, from 0, which determines its label.

    Attributes:
        id: names it in requests and addresses; see `run_id`.
        now: what was last read of it.
    """

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__()
        self.folder, self.number, self.id = folder, number, run_id(folder)
        self.now = Reading()
        self._tail = metrics.Tail(folder / "metrics.jsonl")

    def refresh(self, *, is_shown: bool) -> None:
        """Start reading what has changed, unless this is under way.

        Of a run that has ended and is not shown, only the summary is kept.
        """
        self.start(lambda: self._refresh(is_shown))

    def _refresh(self, is_shown: bool) -> None:
        now, (stamp, recency) = self.now, _stamp(self.folder)
        if stamp != now.stamp or (is_shown and not now.files and not now.problem):
            now = self._read(replace(now, stamp=stamp, recency=recency))
        if now.files and not is_shown and now.summary and now.summary.state != "running":
            self._tail = metrics.Tail(self.folder / "metrics.jsonl")
            now = replace(now, token=secrets.token_hex(4), files=None, samples=())
        self.now = now

    def _read(self, now: Reading) -> Reading:
        try:
            new, is_another = self._tail.new_rows()
            earlier = now.files.rows if now.files and not is_another else []
            files = read_run(self.folder, [*earlier, *new])
            samples = tuple(metrics.read(self.folder / "samples.jsonl"))
            token = secrets.token_hex(4) if is_another else now.token
            summary, recipe = summary_of(files), {key: str(plain_value(v)) for key, v in flatten(files.recipe).items()}
            return replace(now, token=token, files=files, samples=samples, summary=summary, recipe=recipe, problem=None)
        except HornbookError as error:
            self._tail = metrics.Tail(self.folder / "metrics.jsonl")
            return replace(now, files=None, problem=str(error))


def _stamp(folder: Path) -> tuple[object, tuple[bool, float]]:
    """Return a value that changes when a file of the run changes or its process starts or ends, and the recency."""
    is_running, written = is_locked(folder), 0.0
    found: list[object] = [is_running]
    for name in _WATCHED:
        try:
            status = (folder / name).stat()
        except OSError:
            continue
        found.append((name, status.st_mtime_ns, status.st_size, status.st_ino))
        written = status.st_mtime if name == "metrics.jsonl" else written
    return found, (is_running, written)
