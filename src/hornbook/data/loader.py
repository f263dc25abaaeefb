"""From windows to batches: what each rank computes at each step.

    global_batch_size 8, micro_batch_size 2, 2 ranks          step 0     samples    0 1 | 2 3 | 4 5 | 6 7
                                                              rank             0     1     0     1
    rank 0 gets [{samples 0 1}, {samples 4 5}], rank 1 gets [{2 3}, {6 7}]; the next step begins at sample 8

Samples are counted over the global batch, never over ranks, and each is a function of its number
(`hornbook.data.examples`), so a loader's state is one integer, ``next_sample``, and any number of ranks, any prefetch
depth and any resume point see the same samples in the same order. The price: every rank needs the whole store within
reach, on its own disk or a shared one.

A batch is a dict of int64 tensors, batch-first: ``tokens``, ``targets`` (-100: not scored), ``positions`` and ``keys``
(32 random bits a token, the source of dropout), each [B, T]; and ``documents`` where attention is to stay within
documents. Positions run from 0 to T - 1 across documents, as in GPT-2: documents mask attention, nothing else.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from hornbook.data.examples import EvaluationWindows, Windows
from hornbook.data.hashing import IntegerArray, Purpose, mix64
from hornbook.errors import DataError, UserError

Batch: TypeAlias = dict[str, torch.Tensor]


def micro_batch_samples(
    first_sample: int, *, global_batch_size: int, micro_batch_size: int, rank: int, world_size: int
) -> NDArray[np.int64]:
    """The samples of one step that are this rank's: int64[num_micro_batches, micro_batch_size].

    Micro-batches are dealt round robin: number ``j * world_size + rank`` of the global batch is this rank's j-th.

    Raises:
        UserError: the global batch does not divide into whole micro-batches for every rank.
    """
    assert 0 <= rank < world_size, f"rank {rank} of {world_size}"
    round_size = micro_batch_size * world_size
    if global_batch_size < 1 or global_batch_size % round_size:
        fitting = sorted({max(global_batch_size // round_size, 1), global_batch_size // round_size + 1})
        raise UserError(
            f"global_batch_size {global_batch_size} does not divide into micro-batches of {micro_batch_size} on "
            f"{world_size} rank(s): take a multiple of {round_size}, such as "
            + " or ".join(str(multiple * round_size) for multiple in fitting)
        )
    samples = np.arange(first_sample, first_sample + global_batch_size, dtype=np.int64)
    return samples.reshape(-1, world_size, micro_batch_size)[:, rank]


def token_keys(seed: int, samples: IntegerArray, sequence_length: int) -> NDArray[np.int64]:
    """int64[B, T] in [0, 2**32): a hash of (seed, sample, position), all the randomness that a token brings along."""
    keys = mix64(seed, Purpose.KEYS, samples[:, None], np.arange(sequence_length)) >> np.uint64(32)
    return keys.astype(np.int64)


class Loader:
    """Endless steps of training: each item is the list of this rank's micro-batches.

    Up to ``prefetch`` steps are made ahead in one background thread, 0 makes each when asked for. The thread starts
    with the first item and `close` (or leaving the ``with`` block) ends it; an error in it is raised where its step is
    asked for, and again if asked again.

    Args:
        windows: the samples.
        global_batch_size: samples of a step, over all ranks.
        micro_batch_size: samples of one batch.
        rank: this process.
        world_size: number of data-parallel ranks.
        start_sample: where to go on, `next_sample` of an earlier loader; 0 for a new run.
        seed: of the keys.
        document_mask: whether batches hold ``documents``.
        pin_memory: put tensors into page-locked memory, from which copies to a GPU overlap with its work.
        prefetch: how many steps to make ahead.

    Attributes:
        next_sample: number of the first sample not handed out yet; the whole state.

    Raises:
        UserError: as `micro_batch_samples`.
    """

    def __init__(
        self,
        windows: Windows,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        rank: int,
        world_size: int,
        start_sample: int,
        seed: int,
        document_mask: bool,
        pin_memory: bool = False,
        prefetch: int = 2,
    ) -> None:
        self._windows = windows
        self._layout = {
            "global_batch_size": global_batch_size,
            "micro_batch_size": micro_batch_size,
            "rank": rank,
            "world_size": world_size,
        }
        micro_batch_samples(start_sample, **self._layout)  # raises now and not in the thread
        self._seed = seed
        self._document_mask = document_mask
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
        """All of the rank's samples are read at once, then cut into micro-batches."""
        samples = micro_batch_samples(first_sample, **self._layout)
        window = self._windows.batch(samples.reshape(-1))
        whole = _as_batch(
            tokens=window.tokens[:, :-1],
            targets=window.tokens[:, 1:],
            keys=token_keys(self._seed, samples.reshape(-1), self._windows.sequence_length),
            documents=window.documents[:, :-1] if self._document_mask else None,
        )
        if self._pin_memory:
            whole = {name: tensor.pin_memory() for name, tensor in whole.items()}
        parts = {name: torch.split(tensor, samples.shape[1]) for name, tensor in whole.items()}
        return [{name: parts[name][number] for name in parts} for number in range(len(samples))]


def refuse_unknown_tokens(batch: Batch, vocab_size: int) -> None:
    """Raise DataError if ``batch`` holds a token that a model of ``vocab_size`` does not have.

    Stores made elsewhere need not say how large their vocabulary is, so this is seen when the tokens are.
    """
    largest = max(int(batch["tokens"].max()), int(batch["targets"].max()))
    if largest >= vocab_size:
        raise DataError(
            f"the data hold token {largest}, but model.vocab_size is {vocab_size}: "
            "set it to the vocabulary of the tokenizer that made the data"
        )


def evaluation_batches(
    windows: EvaluationWindows,
    *,
    micro_batch_size: int,
    rank: int,
    world_size: int,
    document_mask: bool,
    max_windows: int | None = None,
) -> Iterator[Batch]:
    """This rank's share of an evaluation, in batches of exactly ``micro_batch_size`` windows.

    Every rank gets the same number of batches, since sharded models compute in step; what is missing at the end is
    filled with windows in which nothing is scored. ``max_windows`` takes that many, spread evenly over the store. Keys
    are zero: nothing random happens in an evaluation.
    """
    num_windows = windows.num_windows if max_windows is None else min(max_windows, windows.num_windows)
    chosen = np.arange(num_windows, dtype=np.int64) * windows.num_windows // num_windows
    round_size = micro_batch_size * world_size
    padded = np.concatenate([chosen, np.full(-num_windows % round_size, windows.num_windows)])
    for indices in padded.reshape(-1, world_size, micro_batch_size)[:, rank]:
        parts = [windows.window(index) for index in indices.tolist()]
        yield _as_batch(
            tokens=np.stack([part.tokens for part in parts]),
            targets=np.stack([part.targets for part in parts]),
            keys=np.zeros((micro_batch_size, windows.sequence_length), dtype=np.int64),
            documents=np.stack([part.documents for part in parts]) if document_mask else None,
        )


def _as_batch(
    *,
    tokens: NDArray[np.int64],
    targets: NDArray[np.int64],
    keys: NDArray[np.int64],
    documents: NDArray[np.int64] | None,
) -> Batch:
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int64), tokens.shape)
    arrays: dict[str, NDArray[Any]] = {"tokens": tokens, "targets": targets, "positions": positions, "keys": keys}
    if documents is not None:
        arrays["documents"] = documents
    return {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}
