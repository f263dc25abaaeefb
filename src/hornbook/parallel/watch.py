"""A watch over the ranks of a run, so that one that is lost is told from one that is busy.

Each rank counts up a number in the store that all ranks share, and looks at that of the next rank::

    rank 0 --looks at--> rank 1 --looks at--> ... --looks at--> rank 0

A rank that computes, saves or validates goes on counting, in a thread of its own, however long that takes. One that is
stopped or whose machine is gone does not; sums would wait for it until their time-out. The rank that looks at it says
so and ends its process, on which ``torchrun`` ends or restarts all. A rank that dies also tears its connections, so
that a sum fails on the others at once; `Watch.explain` then finds out whose number stands still. The price: two small
requests to the store a second and rank.
"""

import os
import threading
import time

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from hornbook.errors import HornbookError

_BEAT_SECONDS = 1.0
_WINDOW_SECONDS = 5.0
"""Long enough for a rank that is alive to count on."""
_SILENCE_SECONDS = 40.0
_HAS_LEFT = 1 << 60


class Watch:
    """Counts for this rank, and looks at the next one, until ``end``.

    Args:
        store: shared by all ranks of this start.
        rank, size: which of them this is, and of how many.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store = PrefixStore("watch", store.clone())  # type: ignore[attr-defined]  # its own connection: no wait of others blocks it
        self._rank, self._size = rank, size
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

        Takes some seconds.
        """
        try:
            before = self._counts()
            time.sleep(_WINDOW_SECONDS)
            lost = [rank for rank, (old, new) in enumerate(zip(before, self._counts(), strict=True)) if old == new]
            return HornbookError(self._agreed(lost)) if lost else error
        except dist.DistError:
            return HornbookError(f"{_named([], self._size)}; {_REMEDY}")

    def _agreed(self, lost: list[int]) -> str:
        """Return the message of whoever noticed first: the ranks that end because of it stand still a little later."""
        told = self._store.compare_set("lost", "", f"{_named(lost, self._size)}; {_REMEDY}")
        return str(told, "utf-8")

    def _run(self) -> None:
        try:
            self._look()
        except dist.DistError:
            return  # without its store, a sum fails as well and is explained there

    def _look(self) -> None:
        other = (self._rank + 1) % self._size
        seen, at, last = self._count(other, 0), time.monotonic(), time.monotonic()
        while not self._ended.wait(_BEAT_SECONDS):
            self._count(self._rank, 1)
            count, now = self._count(other, 0), time.monotonic()
            was_stopped_itself = now - last > _WINDOW_SECONDS
            if count != seen or count >= _HAS_LEFT or was_stopped_itself:
                seen, at = count, now
            last = now
            if now - at > _SILENCE_SECONDS:
                os.write(2, f"hornbook: error: {self._agreed([other])}\n".encode())
                os._exit(HornbookError.exit_code)  # the main thread waits inside of a sum and cannot be woken

    def _counts(self) -> list[int]:
        return [self._count(rank, 0) for rank in range(self._size)]

    def _count(self, rank: int, step: int) -> int:
        return self._store.add(f"rank {rank}", step)


_REMEDY = "the others stop: run the same command again to resume from the last checkpoint"


def _named(lost: list[int], size: int) -> str:
    if not lost:
        return "the connection to the other ranks is lost"
    which = f"rank {lost[0]}" if len(lost) == 1 else f"ranks {', '.join(map(str, lost))}"
    return f"lost {which} of {size}: no sign of life"
