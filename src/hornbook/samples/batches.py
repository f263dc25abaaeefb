"""Turn samples into batches of tensors and distribute them over the ranks.

    global_batch_size 8, micro_batch_size 2, 2 ranks          step 0     samples    0 1 | 2 3 | 4 5 | 6 7
                                                              rank             0     1     0     1
    rank 0 gets [{samples 0 1}, {samples 4 5}], rank 1 gets [{2 3}, {6 7}]; the next step begins at sample 8

A ``BatchMaker`` maps sample numbers to batches and a ``HeldOut`` maps window numbers to batches; both are stateless.
Samples are numbered over the global batch, not per rank, so a ``Loader``'s state is one integer, ``next_sample``, and
the samples and their order do not depend on the number of ranks, the prefetch depth or the step at which a run resumes.
Every rank must be able to read the whole store, from a disk or a URL (`hornbook.corpora.remote_store`).

A batch is a dict of batch-first int64 tensors. A batch of windows holds ``tokens``, ``targets`` (-100: not scored),
``positions`` and ``keys`` (32 random bits per token, from which dropout is drawn), each [B, T], and ``documents`` if
attention is restricted to documents. Positions run from 0 to T - 1 across document boundaries, as in GPT-2: documents
mask attention, nothing else. `hornbook.samples.layout` describes the batches of encoders.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from hornbook.arrays import Int64s, Integers
from hornbook.config.build import refuse_uneven
from hornbook.errors import DataError
from hornbook.samples.hashing import Purpose, mix64
from hornbook.samples.mixture import Mixture
from hornbook.samples.windows import NOT_SCORED, DocumentWindows, EvaluationDocumentWindows, EvaluationWindows, Windows

Batch: TypeAlias = dict[str, torch.Tensor]

_SHAPING: Final = ("firsts", "lengths")


class Size(NamedTuple):
    """The number of samples, counted tokens and padding tokens of a batch.

    Throughput and the length of a run are measured in counted tokens: a decoder's scored targets, all of an encoder's
    tokens.
    """

    samples: int
    tokens: int
    padding: int


class BatchMaker(Protocol):
    """Makes the micro-batches of given sample numbers."""

    def batches(self, samples: Int64s, /) -> list[Batch]:
        """Return one micro-batch per row of ``samples``, int64[num_micro_batches, micro_batch_size]."""


class HeldOut(Protocol):
    """Windows or sequences of an evaluation, each scored once."""

    @property
    def num_items(self) -> int:
        """How many there are."""

    def batch(self, numbers: Int64s, /) -> Batch:
        """Return the windows ``numbers``; past the last one nothing is scored, so that ranks may run in step."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of a run."""

    maker: BatchMaker
    num_samples: int
    """Samples per epoch."""
    tokens_per_sample: float
    """Mean number of counted tokens (see ``Size``) per sample."""
    held_out: HeldOut | None
    held_out_bytes: int | None = None
    """UTF-8 bytes of the held-out text if all of its tokens are scored."""
    held_out_stores: Mapping[str, HeldOut] = field(default_factory=dict)
    """The held-out windows of each store of a mixture, by name; empty unless several stores have some."""
    ids_are_checked: bool = False
    """Whether ``maker`` rejects tokens outside of the tokenizer's vocabulary, so that the loader does not."""
    shows_padding: bool = False
    noun: str = "window"
    facts: Mapping[str, str] = field(default_factory=dict)
    """Properties to print before the first step, by name."""


class WindowBatches:
    """Training batches of windows for a decoder.

    Args:
        windows: the samples.
        seed: seed of the keys.
        document_mask: whether to add ``documents`` to the batches.
        num_unscored: number of targets at the start of a window that are not scored.
    """

    def __init__(
        self,
        windows: Windows | DocumentWindows | Mixture,
        *,
        seed: int,
        document_mask: bool,
        num_unscored: int = 0,
    ) -> None:
        self._windows, self._seed, self._document_mask = windows, seed, document_mask
        self._num_unscored = num_unscored

    def batches(self, samples: Int64s, /) -> list[Batch]:
        """Read all windows at once, then split them into micro-batches; see ``BatchMaker``."""
        window = self._windows.batch(samples.reshape(-1))
        whole = _as_batch(
            tokens=window.tokens[:, :-1],
            targets=window.tokens[:, 1:],
            keys=token_keys(self._seed, samples.reshape(-1), self._windows.sequence_length),
            documents=window.documents[:, :-1] if self._document_mask else None,
            num_unscored=self._num_unscored,
        )
        parts = {name: torch.split(tensor, samples.shape[1]) for name, tensor in whole.items()}
        return [{name: parts[name][number] for name in parts} for number in range(len(samples))]


class HeldOutWindows:
    """Windows of a held-out store. Keys are zero: nothing random happens in an evaluation."""

    def __init__(
        self,
        windows: EvaluationWindows | EvaluationDocumentWindows,
        *,
        document_mask: bool = False,
        num_unscored: int = 0,
    ) -> None:
        self.windows, self._document_mask, self._num_unscored = windows, document_mask, num_unscored

    @property
    def num_items(self) -> int:
        """How many there are."""
        return self.windows.num_items

    def batch(self, numbers: Int64s, /) -> Batch:
        parts = [self.windows.window(number) for number in numbers.tolist()]
        return _as_batch(
            tokens=np.stack([part.tokens for part in parts]),
            targets=np.stack([part.targets for part in parts]),
            keys=np.zeros((len(parts), self.windows.sequence_length), dtype=np.int64),
            documents=np.stack([part.documents for part in parts]) if self._document_mask else None,
            num_unscored=self._num_unscored,
        )


def _as_batch(*, tokens: Int64s, targets: Int64s, keys: Int64s, documents: Int64s | None, num_unscored: int) -> Batch:
    if num_unscored:
        targets = targets.copy()
        targets[:, :num_unscored] = NOT_SCORED
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int64), tokens.shape)
    arrays: dict[str, NDArray[Any]] = {"tokens": tokens, "targets": targets, "positions": positions, "keys": keys}
    if documents is not None:
        arrays["documents"] = documents
    return {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}


def token_keys(seed: int, samples: Integers, sequence_length: int) -> Int64s:
    """Return the keys of tokens, int64[B, T] in [0, 2**32): hashes of (seed, sample, position)."""
    keys = mix64(seed, Purpose.KEYS, samples[:, None], np.arange(sequence_length)) >> np.uint64(32)
    return keys.astype(np.int64)


def size_of(batch: Batch) -> Size:
    """Return the ``Size`` of a batch."""
    if "lengths" in batch:
        num_tokens = int(batch["lengths"].sum())
        return Size(len(batch["lengths"]), num_tokens, batch["tokens"].numel() - num_tokens)
    return Size(len(batch["tokens"]), int((batch["targets"] != NOT_SCORED).sum()), 0)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch on a device; from page-locked memory, the copy overlaps with computation on the device.

    ``firsts`` and ``lengths`` stay in host memory: shapes depend on them, and reading them from the device would
    synchronize with it.
    """
    return {
        name: tensor if name in _SHAPING else tensor.to(device, non_blocking=True) for name, tensor in batch.items()
    }


def refuse_unknown_ids(batch: Batch, num_ids: int | None, num_segments: int) -> None:
    """Raise DataError if ``batch`` has a token or a segment outside the tables of a model.

    Stores built by other tools need not state their vocabulary size, so the check has to look at the tokens.

    Args:
        batch: in host memory.
        num_ids: of the tokens; None accepts all.
        num_segments: of the segments; a table of one row ignores them.
    """
    tokens, targets, segments = batch["tokens"], batch["targets"], batch.get("segments")
    for ids in (tokens, targets[targets != NOT_SCORED]):
        if num_ids is not None and (unknown := ids[(ids < 0) | (ids >= num_ids)]).numel():
            raise DataError(
                f"the data contain token {int(unknown[0])}, but model.vocab_size {num_ids} allows only 0 to "
                f"{num_ids - 1}: set model.vocab_size to the vocabulary size of the tokenizer that made the data, "
                "or rebuild the data"
            )
    if segments is None or num_segments <= 1:
        return
    if (unknown := segments[(segments < 0) | (segments >= num_segments)]).numel():
        raise DataError(
            f"the data contain segment {int(unknown[0])}, but model.num_segments {num_segments} allows only 0 to "
            f"{num_segments - 1}: raise model.num_segments, or rebuild the data"
        )


def micro_batch_offsets(*, global_batch_size: int, micro_batch_size: int, rank: int, world_size: int) -> Int64s:
    """Return this rank's samples of a step, relative to its first: int64[num_micro_batches, micro_batch_size].

    Micro-batches are assigned round robin: number ``j * world_size + rank`` of the global batch is this rank's j-th.

    Raises:
        UserError: the global batch does not divide into whole micro-batches for every rank.
    """
    assert 0 <= rank < world_size, f"rank {rank} of {world_size}"
    refuse_uneven(global_batch_size, micro_batch_size, world_size)
    return np.arange(global_batch_size, dtype=np.int64).reshape(-1, world_size, micro_batch_size)[:, rank]


class Loader(AbstractContextManager["Loader"], Iterator[list[Batch]]):
    """An endless iterator over training steps; each item is the list of this rank's micro-batches.

    One background thread prepares up to ``prefetch`` steps ahead; with 0, each step is made on demand. The thread
    starts with the first item and ends with `close` or the ``with`` block. An exception in it is raised by the
    ``next`` that would return its step, and by every later one.

    Args:
        maker: source of the batches.
        global_batch_size: samples per step, over all ranks.
        micro_batch_size: samples per micro-batch.
        rank: this process's data-parallel rank.
        world_size: number of data-parallel ranks.
        start_sample: first sample: 0 for a new run, `next_sample` of an earlier loader to resume.
        vocab_size: the model's, to reject tokens outside it; None to skip the check.
        num_segments: the model's, to reject segments outside it; 1 if it ignores them.
        pin_memory: copy tensors to page-locked memory, from which copies to a GPU overlap with its computation.
        prefetch: number of steps to prepare ahead.

    Attributes:
        next_sample: number of the first sample that has not been returned; the loader's whole state.

    Raises:
        UserError: see `micro_batch_offsets`.
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
        vocab_size: int | None = None,
        num_segments: int = 1,
        pin_memory: bool = False,
        prefetch: int = 2,
    ) -> None:
        self._maker = maker
        self._global_batch_size = global_batch_size
        self._offsets = micro_batch_offsets(
            global_batch_size=global_batch_size, micro_batch_size=micro_batch_size, rank=rank, world_size=world_size
        )
        self._vocab_size, self._num_segments = vocab_size, num_segments
        self._pin_memory, self._prefetch = pin_memory, prefetch
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hornbook-loader")
        self._pending: deque[Future[list[Batch]]] = deque()
        self._closed = False
        self.next_sample = start_sample

    def __next__(self) -> list[Batch]:
        if self._closed:
            raise StopIteration
        size = self._global_batch_size
        if self._prefetch:
            while len(self._pending) <= self._prefetch:
                self._pending.append(self._executor.submit(self._step, self.next_sample + len(self._pending) * size))
            batches = self._pending[0].result()
            self._pending.popleft()
        else:
            batches = self._step(self.next_sample)
        self.next_sample += size
        return batches

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Discard prefetched steps and join the thread; iteration then ends."""
        self._closed = True
        self._pending.clear()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _step(self, first_sample: int) -> list[Batch]:
        batches = self._maker.batches(first_sample + self._offsets)
        for batch in batches:
            refuse_unknown_ids(batch, self._vocab_size, self._num_segments)
        if self._pin_memory:
            batches = [{name: tensor.pin_memory() for name, tensor in batch.items()} for batch in batches]
        return batches


def evaluation_batches(
    held_out: HeldOut, *, micro_batch_size: int, rank: int, world_size: int, max_windows: int | None = None
) -> Iterator[Batch]:
    """Yield this rank's share of an evaluation in batches of exactly ``micro_batch_size`` windows.

    Every rank gets the same number of batches, since sharded models compute in step; the last ones are filled with
    windows in which nothing is scored. ``max_windows`` selects that many windows, evenly spaced over the store.
    """
    chosen = spread_evenly(held_out.num_items, max_windows)
    round_size = micro_batch_size * world_size
    padded = np.concatenate([chosen, np.full(-len(chosen) % round_size, held_out.num_items)])
    for numbers in padded.reshape(-1, world_size, micro_batch_size)[:, rank]:
        yield held_out.batch(numbers)


def spread_evenly(count: int, most: int | None) -> Int64s:
    """Return ``most`` evenly spaced numbers of 0 .. count - 1, or all of them: int64, ascending."""
    num_chosen = count if most is None else min(most, count)
    return np.arange(num_chosen, dtype=np.int64) * count // max(num_chosen, 1)
