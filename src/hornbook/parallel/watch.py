"""A watch over the ranks of a run, so that one that is lost is told from one that is busy.

Each rank counts up a number in the store that all ranks share, and looks at that of the next rank::

    rank 0 --looks at--> rank 1 --looks at--> ... --looks at--> rank 0

A rank that computes, saves or validates goes on counting, in a thread of its own, however long that takes. One that is
stopped or whose machine is gone does not; sums would wait for it until their time-out. The rank that looks at it says
so and ends its process, on which the launcher ends or restarts all. A rank that dies also tears its connections, so
that a sum fails on the others at once; `Watch.explain` then finds out whose number stands still. A rank that fails says
why in the store before it leaves; so the run ends with one line, and the others, wherever they wait, end without one.

A rank whose launcher is gone gets SIGTERM: it saves and stops with the others instead of running on unattended. Ranks
whose store is gone with the machine that held it have nowhere to agree: they leave, and the last one prints the line.
The price: three small requests to the store a second and rank.
"""

import os
import signal
import threading
import time
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from hornbook.errors import HornbookError, RankError
from hornbook.parallel.meeting import launcher_has_store, named, store_address, tell, told

_BEAT_SECONDS = 1.0
_WINDOW_SECONDS = 5.0
"""Long enough for a rank that is alive to count on."""
_SILENCE_SECONDS = 25.0
_GRACE_SECONDS = 10.0
"""Between the line that ends a run and the end of a rank that still waits for others."""
_HAS_LEFT = 1 << 60


class Watch:
    """Counts for this rank, and looks at the next one, until ``end``.

    Args:
        store: shared by all ranks of this start.
        rank, size: which of them this is, and of how many.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store = store.clone()  # type: ignore[attr-defined]  # its own connection: no wait of others blocks it
        self._store.set_timeout(timedelta(seconds=_SILENCE_SECONDS))
        self._counters = PrefixStore("watch", self._store)
        self._rank, self._size, self._launcher = rank, size, os.getppid()
        self._ended = threading.Event()
        self._count(rank, 1)
        self._thread = threading.Thread(target=self._run, name="watch over the ranks", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Tell the others that this rank has left, and look no more."""
        self._ended.set()
        self._thread.join()
        try:
            self._count(self._rank, _HAS_LEFT)
        except dist.DistError:
            return  # the store's process has ended, as it may

    def explain(self, error: RuntimeError) -> Exception:
        """Return the error that says which rank was lost when a sum failed, or the sum's own if all are alive.

        Takes some seconds, unless a rank has said why it left.
        """
        try:
            if said := told(self._store):
                return said
            before = self._counts()
            time.sleep(_WINDOW_SECONDS)
            lost = [rank for rank, (old, new) in enumerate(zip(before, self._counts(), strict=True)) if old == new]
            return self._lost(lost) if lost else told(self._store) or error
        except dist.DistError:
            return self._cut_off()

    def tell(self, line: str, exit_code: int) -> RankError:
        """Return the error with which this rank leaves; one rank alone prints its line.

        Args:
            line: what went wrong on this rank.
            exit_code: of all ranks.
        """
        try:
            return tell(self._store, self._rank, f"{named([self._rank], self._size)}: {line}", exit_code)
        except dist.DistError:
            return RankError(line, exit_code)

    def _lost(self, ranks: list[int]) -> RankError:
        """Return the error of whoever noticed first: ranks that end because of it stand still a little later."""
        line = f"lost {named(ranks, self._size)}: no sign of life; {REMEDY}"
        return tell(self._store, self._rank, line, HornbookError.exit_code)

    def _cut_off(self) -> RankError:
        """Return the error of ranks whose store is gone, in which they could agree on who prints it.

        The last rank does: it is the one that is most likely on another machine than the store.
        """
        where = "the launcher" if launcher_has_store() else named([0], self._size)
        line = f"lost {where} at {store_address()}, where all ranks meet: no answer; {REMEDY}"
        return RankError(line, HornbookError.exit_code, is_told=self._rank < self._size - 1)

    def _run(self) -> None:
        try:
            self._look()
        except dist.DistError:
            self._stop_if_alone()
            if self._launcher != _STOPPED and not self._ended.wait(_GRACE_SECONDS):
                _leave(self._cut_off())

    def _look(self) -> None:
        other = (self._rank + 1) % self._size
        seen, at, last = self._count(other, 0), time.monotonic(), time.monotonic()
        while not self._ended.wait(_BEAT_SECONDS):
            self._stop_if_alone()
            self._count(self._rank, 1)
            if (said := told(self._store)) and not self._ended.wait(_GRACE_SECONDS):
                _leave(said)
            count, now = self._count(other, 0), time.monotonic()
            was_stopped_itself = now - last > _WINDOW_SECONDS
            if count != seen or count >= _HAS_LEFT or was_stopped_itself:
                seen, at = count, now
            last = now
            if now - at > _SILENCE_SECONDS:
                _leave(self._lost([other]))

    def _stop_if_alone(self) -> None:
        if self._launcher not in (os.getppid(), _STOPPED):
            self._launcher = _STOPPED
            os.kill(os.getpid(), signal.SIGTERM)

    def _counts(self) -> list[int]:
        return [self._count(rank, 0) for rank in range(self._size)]

    def _count(self, rank: int, step: int) -> int:
        return self._counters.add(f"rank {rank}", step)


_STOPPED = -1
"""In place of a launcher that is gone."""
REMEDY = "the others stop: run the same command again to resume from the last checkpoint"


def _leave(error: RankError) -> None:
    """End this process from the watch's thread: the main one waits inside of a sum and cannot be woken."""
    if not error.is_told:
        os.write(2, f"hornbook: error: {error}\n".encode())
    os._exit(error.exit_code)
