"""Heartbeats of the ranks of a run, which distinguish lost ranks from busy ones.

Each rank increments a counter in the shared store and checks that of the next rank::

    rank 0 --checks--> rank 1 --checks--> ... --checks--> rank 0

A background thread keeps counting while a rank computes, saves or validates. It stops if the process is stopped or its
machine is gone; collectives would wait for such a rank until their timeout. The rank that checks it reports this and
ends its process, whereupon the launcher ends or restarts all. If a rank dies, its connections break and collectives
fail on the others at once; `Watch.explain` then finds the rank whose counter has stopped. A rank that fails writes the
reason to the store before it leaves, so the run ends with one line, and the others end silently.

A rank whose launcher is gone gets SIGTERM, so that it saves and stops with the others instead of running unattended. If
the store is gone with its machine, the ranks cannot agree: they leave, and the last one prints the line. Rank 0, if it
holds the store, leaves after the others, so that they still find the reason there. The cost: three small requests to
the store per second and rank.
"""

import os
import signal
import threading
import time
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from hornbook.errors import HornbookError, RankError
from hornbook.parallel.rendezvous import launcher_has_store, named, report, reported, store_address

_BEAT_SECONDS = 1.0
_WINDOW_SECONDS = 5.0
"""Any live rank increments its counter within this time."""
_SILENCE_SECONDS = 25.0
_GRACE_SECONDS = 10.0
"""Time between a reported error and the end of a rank that still waits for others."""
_PAUSE_SECONDS = 0.1
_HAS_LEFT = 1 << 60


class Watch:
    """The heartbeat of this rank and the check of the next one, until ``end``.

    Args:
        store: shared by all ranks of this start.
        rank: of this process.
        size: number of ranks.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._server = store  # which may be in this process, and ends with its last reference
        self._store = store.clone()  # type: ignore[attr-defined]  # a separate connection, which no other wait blocks
        self._store.set_timeout(timedelta(seconds=_SILENCE_SECONDS))
        self._counters = PrefixStore("watch", self._store)
        self._rank, self._size, self._launcher = rank, size, os.getppid()
        self._ended = threading.Event()
        self._known: RankError | None = None
        self._count(rank, 1)
        self._thread = threading.Thread(target=self._run, name="watch over the ranks", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Announce that this rank has left, and stop checking."""
        self._ended.set()
        self._thread.join(_SILENCE_SECONDS)
        if self._thread.is_alive():  # the store hangs, and requests to it have no time limit
            return
        try:
            self._count(self._rank, _HAS_LEFT)
        except dist.DistError:
            return  # the process with the store may have ended already

    def see_off(self) -> None:
        """Wait, if this process holds the store, until the other ranks have left or show no sign of life."""
        if self._rank or launcher_has_store():
            return
        counts, at = self._counts(), time.monotonic()
        while min(counts[1:], default=_HAS_LEFT) < _HAS_LEFT and time.monotonic() < at + _WINDOW_SECONDS:
            time.sleep(_PAUSE_SECONDS)
            if (new := self._counts()) != counts:
                counts, at = new, time.monotonic()

    def explain(self, error: RuntimeError) -> Exception:
        """Return an error that names the rank whose loss made communication fail, or ``error`` if all are alive.

        This takes some seconds, unless a rank has reported an error.
        """
        try:
            if known := self._reported():
                return known
            before = self._counts()
            time.sleep(_WINDOW_SECONDS)
            lost = [rank for rank, (old, new) in enumerate(zip(before, self._counts(), strict=True)) if old == new]
            return self._lost(lost) if lost else self._reported() or error
        except dist.DistError:
            return self._cut_off()

    def report(self, line: str, exit_code: int) -> RankError:
        """Report an error of this rank and return the error to raise; only one rank prints its line.

        Args:
            line: the error message.
            exit_code: of all ranks.
        """
        try:
            return report(self._store, self._rank, f"{named([self._rank], self._size)}: {line}", exit_code)
        except dist.DistError:
            return RankError(line, exit_code)

    def _reported(self) -> RankError | None:
        self._known = reported(self._store, self._rank)
        return self._known

    def _lost(self, ranks: list[int]) -> RankError:
        """Return the error of the rank that noticed first, since ranks that end because of it stop counting later."""
        line = f"lost {named(ranks, self._size)}: no sign of life; {REMEDY}"
        return report(self._store, self._rank, line, HornbookError.exit_code)

    def _cut_off(self) -> RankError:
        """Return the error of ranks whose store is gone, so that they cannot agree on one that prints it.

        The last rank prints it, since it is most likely on another machine than the store. If an error was reported
        before, it is the reason why the store is gone.
        """
        if self._known:
            return self._known
        where = "the launcher" if launcher_has_store() else named([0], self._size)
        line = f"lost {where} at {store_address()}, where all ranks meet: no answer; {REMEDY}"
        return RankError(line, HornbookError.exit_code, is_reported=self._rank < self._size - 1)

    def _run(self) -> None:
        try:
            self._check()
        except dist.DistError:
            self._stop_if_alone()
            if self._launcher != _STOPPED and not self._ended.wait(_GRACE_SECONDS):
                self._leave(self._cut_off())

    def _check(self) -> None:
        other = (self._rank + 1) % self._size
        seen, at, last = self._count(other, 0), time.monotonic(), time.monotonic()
        while not self._ended.wait(_BEAT_SECONDS):
            self._stop_if_alone()
            self._count(self._rank, 1)
            if (error := self._reported()) and not self._ended.wait(_GRACE_SECONDS):
                self._leave(error)
            count, now = self._count(other, 0), time.monotonic()
            was_stopped_itself = now - last > _WINDOW_SECONDS
            if count != seen or count >= _HAS_LEFT or was_stopped_itself:
                seen, at = count, now
            last = now
            if now - at > _SILENCE_SECONDS:
                self._leave(self._lost([other]))

    def _leave(self, error: RankError) -> None:
        """End this process from the background thread, since the main thread waits in a collective."""
        if not error.is_reported:
            os.write(2, f"hornbook: error: {error}\n".encode())
        with suppress(dist.DistError):
            self.see_off()
        os._exit(error.exit_code)

    def _stop_if_alone(self) -> None:
        if self._launcher not in (os.getppid(), _STOPPED):
            self._launcher = _STOPPED
            os.kill(os.getpid(), signal.SIGTERM)

    def _counts(self) -> list[int]:
        return [self._count(rank, 0) for rank in range(self._size)]

    def _count(self, rank: int, step: int) -> int:
        return self._counters.add(f"rank {rank}", step)


_STOPPED = -1
"""Replaces the process id of a launcher that is gone."""
REMEDY = "the others stop: run the same command again to resume from the last checkpoint"
