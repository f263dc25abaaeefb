"""From windows to batches: what each rank computes at each step.

    global_batch_size 8, micro_batch_size 2, 2 ranks          step 0     samples    0 1 | 2 3 | 4 5 | 6 7
                                                              rank             0     1     0     1
    rank 0 gets [{samples 0 1}, {samples 4 5}], rank 1 gets [{2 3}, {6 7}]; the next step begins at sample 8

Samples are counted over the global batch, never over ranks, and each is a function of its number
(`hornbook.samples.batches`), so a loader's state is one integer, ``next_sample``, and any number of ranks, any prefetch
depth and any resume point see the same samples in the same order. The price: every rank needs the whole store within
reach, on its own disk or a shared one.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import numpy as np

from hornbook.arrays import Int64s
from hornbook.errors import UserError
from hornbook.samples.batches import Batch, BatchMaker, HeldOut
from hornbook.wording import counted


def micro_batch_samples(
    first_sample: int, *, global_batch_size: int, micro_batch_size: int, rank: int, world_size: int
) -> Int64s:
    """The samples of one step that are this rank's: int64[num_micro_batches, micro_batch_size].

    Micro-batches are dealt round robin: number ``j * world_size + rank`` of the global batch is this rank's j-th.

    Raises:
        UserError: the global batch does not divide into whole micro-batches for every rank.
    """
    assert 0 <= rank < world_size, f"rank {rank} of {world_size}"
    round_size = micro_batch_size * world_size
    if global_batch_size < 1 or global_batch_size % round_size:
        raise UserError(
            f"global_batch_size {global_batch_size} does not divide into micro-batches of {micro_batch_size} on "
            f"{counted(world_size, 'rank')}: {_what_divides(global_batch_size, micro_batch_size, world_size)}"
        )
    samples = np.arange(first_sample, first_sample + global_batch_size, dtype=np.int64)
    return samples.reshape(-1, world_size, micro_batch_size)[:, rank]


def _what_divides(global_batch_size: int, micro_batch_size: int, world_size: int) -> str:
    """Advise the largest smaller micro-batch that divides, which changes nothing that is learned, or else a batch."""
    sizes = range(min(micro_batch_size, global_batch_size), 0, -1)
    fitting = next((size for size in sizes if global_batch_size % (size * world_size) == 0), None)
    if fitting:
        return f"set training.micro_batch_size to {fitting}, which changes nothing that is learned"
    round_size = micro_batch_size * world_size
    below = max(global_batch_size // round_size, 1)
    multiples = sorted({below * round_size, (global_batch_size // round_size + 1) * round_size})
    return f"take a multiple of {round_size}, such as {' or '.join(map(str, multiples))}"


class Loader:
    """Endless steps of training: each item is the list of this rank's micro-batches.

    Up to ``prefetch`` steps are made ahead in one background thread, 0 makes each when asked for. The thread starts
    with the first item and `close` (or leaving the ``with`` block) ends it; an error in it is raised where its step is
    asked for, and again if asked again.

    Args:
        maker: makes batches of samples.
        global_batch_size: samples of a step, over all ranks.
        micro_batch_size: samples of one batch.
        rank: this process.
        world_size: number of data-parallel ranks.
        start_sample: where to go on, `next_sample` of an earlier loader; 0 for a new run.
        pin_memory: put tensors into page-locked memory, from which copies to a GPU overlap with its work.
        prefetch: how many steps to make ahead.

    Attributes:
        next_sample: number of the first sample not handed out yet; the whole state.

    Raises:
        UserError: as `micro_batch_samples`.
    """

    def __init__(
        self,
        maker: BatchMaker,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        rank: int,
        world_size: int,
        start_sample: int,
        pin_memory: bool = False,
        prefetch: int = 2,
    ) -> None:
        self._maker = maker
        self._layout = {
            "global_batch_size": global_batch_size,
            "micro_batch_size": micro_batch_size,
            "rank": rank,
            "world_size": world_size,
        }
        micro_batch_samples(start_sample, **self._layout)  # raises now and not in the thread
        self._pin_memory = pin_memory
        self._prefetch = prefetch
        self._executor: ThreadPoolExecutor | None = None
        self._pending: deque[Future[list[Batch]]] = deque()
        self._closed = False
        self.next_sample = start_sample

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Batch]:
        if self._closed:
            raise StopIteration
        batches = self._prefetched() if self._prefetch else self._step(self.next_sample)
        self.next_sample += self._layout["global_batch_size"]
        return batches

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop what was made ahead and join the thread; asking for another item then ends the iteration."""
        self._closed = True
        self._pending.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def _prefetched(self) -> list[Batch]:
        """The next step, with the ``prefetch`` steps after it under way or waiting."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hornbook-loader")
        while len(self._pending) <= self._prefetch:
            first_sample = self.next_sample + len(self._pending) * self._layout["global_batch_size"]
            self._pending.append(self._executor.submit(self._step, first_sample))
        batches = self._pending[0].result()
        self._pending.popleft()
        return batches

    def _step(self, first_sample: int) -> list[Batch]:
        batches = self._maker.batches(micro_batch_samples(first_sample, **self._layout))
        if self._pin_memory:
            batches = [{name: tensor.pin_memory() for name, tensor in batch.items()} for batch in batches]
        return batches


def evaluation_batches(
    held_out: HeldOut, *, micro_batch_size: int, rank: int, world_size: int, max_windows: int | None = None
) -> Iterator[Batch]:
    """This rank's share of an evaluation, in batches of exactly ``micro_batch_size`` windows.

    Every rank gets the same number of batches, since sharded models compute in step; what is missing at the end is
    filled with windows in which nothing is scored. ``max_windows`` takes that many, spread evenly over the store.
    """
    chosen = spread_evenly(held_out.num_items, max_windows)
    round_size = micro_batch_size * world_size
    padded = np.concatenate([chosen, np.full(-len(chosen) % round_size, held_out.num_items)])
    for numbers in padded.reshape(-1, world_size, micro_batch_size)[:, rank]:
        yield held_out.batch(numbers)


def spread_evenly(count: int, most: int | None) -> Int64s:
    """``most`` of the numbers 0 .. count - 1 at even distances, or all of them: int64, rising."""
    num_chosen = count if most is None else min(most, count)
    return np.arange(num_chosen, dtype=np.int64) * count // max(num_chosen, 1)
