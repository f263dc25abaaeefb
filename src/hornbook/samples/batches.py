"""From samples to batches of tensors, and to what each rank computes at each step.

    global_batch_size 8, micro_batch_size 2, 2 ranks          step 0     samples    0 1 | 2 3 | 4 5 | 6 7
                                                              rank             0     1     0     1
    rank 0 gets [{samples 0 1}, {samples 4 5}], rank 1 gets [{2 3}, {6 7}]; the next step begins at sample 8

A ``BatchMaker`` maps sample numbers and a ``HeldOut`` window numbers to batches, both without a state, and samples are
counted over the global batch, never over ranks. So a ``Loader``'s state is one integer, ``next_sample``, and any number
of ranks, any prefetch depth and any resume point see the same samples in the same order. Every rank needs access to the
whole store.

A batch is a dict of int64 tensors, batch-first. Of windows it holds ``tokens``, ``targets`` (-100: not scored),
``positions`` and ``keys`` (32 random bits a token, the source of dropout), each [B, T]; and ``documents`` where
attention is to stay within documents. Positions run from 0 to T - 1 across documents, as in GPT-2: documents mask
attention, nothing else. `hornbook.samples.encoder_batches` says what batches of an encoder hold.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from hornbook.arrays import Int64s, Integers
from hornbook.config import Recipe
from hornbook.config.pipeline import rounds_of
from hornbook.errors import DataError, UserError
from hornbook.samples.document_windows import DocumentWindows, EvaluationDocumentWindows
from hornbook.samples.hashing import Purpose, mix64
from hornbook.samples.mixture import Mixture
from hornbook.samples.windows import NOT_SCORED, EvaluationWindows, Windows
from hornbook.wording import counted

Batch: TypeAlias = dict[str, torch.Tensor]

_SHAPING: Final = ("firsts", "lengths")


class Size(NamedTuple):
    """What goes by with a batch: samples, tokens that count, and places that hold padding.

    The tokens are those in which speed and length of a run are counted: a decoder's scored targets, all of an encoder.
    """

    samples: int
    tokens: int
    padding: int


class BatchMaker(Protocol):
    """Turns sample numbers into what a rank computes."""

    def batches(self, samples: Int64s, /) -> list[Batch]:
        """The micro-batches of ``samples``, int64[num_micro_batches, micro_batch_size]: one a row."""


class HeldOut(Protocol):
    """Windows or sequences to be scored, each once."""

    @property
    def num_items(self) -> int:
        """How many there are."""

    def batch(self, numbers: Int64s, /) -> Batch:
        """The windows of these numbers; past the last one nothing is scored, so that ranks may run in step."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of a run."""

    maker: BatchMaker
    num_samples: int
    """Samples of an epoch."""
    tokens_per_sample: float
    """Mean of the tokens that count in a sample: its targets, or an encoder's tokens without padding."""
    held_out: HeldOut | None
    held_out_bytes: int | None = None
    """Bytes of its text, where all of its tokens are scored."""
    held_out_stores: Mapping[str, HeldOut] = field(default_factory=dict)
    """What is held out of each store of a mixture, by its name; empty unless several have some."""
    shows_padding: bool = False
    noun: str = "window"
    facts: Mapping[str, str] = field(default_factory=dict)
    """What a reader wants to know of them before the first step."""


class WindowBatches:
    """Training batches of windows for a decoder.

    Args:
        windows: the samples.
        seed: of the keys.
        document_mask: whether batches hold ``documents``.
        num_unscored: first targets of a window that are not scored.
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
        """All windows are read at once, then cut into micro-batches; see ``BatchMaker``."""
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
        """See ``HeldOut``."""
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
    """int64[B, T] in [0, 2**32): a hash of (seed, sample, position), all the randomness that a token brings along."""
    keys = mix64(seed, Purpose.KEYS, samples[:, None], np.arange(sequence_length)) >> np.uint64(32)
    return keys.astype(np.int64)


def size_of(batch: Batch) -> Size:
    """Return what goes by with a batch."""
    if "lengths" in batch:
        num_tokens = int(batch["lengths"].sum())
        return Size(len(batch["lengths"]), num_tokens, batch["tokens"].numel() - num_tokens)
    return Size(len(batch["tokens"]), int((batch["targets"] != NOT_SCORED).sum()), 0)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch on a device; from page-locked memory the copy overlaps with the device's work.

    ``firsts`` and ``lengths`` stay in the host's memory: shapes follow from them, and it would have to wait for those.
    """
    return {
        name: tensor if name in _SHAPING else tensor.to(device, non_blocking=True) for name, tensor in batch.items()
    }


def refuse_unknown_tokens(batch: Batch, vocab_size: int) -> None:
    """Raise DataError if ``batch`` holds a token that a model of ``vocab_size`` does not have.

    Stores made elsewhere need not say how large their vocabulary is, so this is seen when the tokens are.
    """
    tokens, targets = batch["tokens"], batch["targets"]
    for held in (tokens, targets[targets != NOT_SCORED]):
        unknown = held[(held < 0) | (held >= vocab_size)]
        if unknown.numel():
            raise DataError(
                f"the data hold token {int(unknown[0])}, but model.vocab_size is {vocab_size}, so tokens are 0 to "
                f"{vocab_size - 1}: set it to the vocabulary of the tokenizer that made the data, or mend the data"
            )


def micro_batch_offsets(*, global_batch_size: int, micro_batch_size: int, rank: int, world_size: int) -> Int64s:
    """This rank's samples of a step, counted from its first one: int64[num_micro_batches, micro_batch_size].

    Micro-batches are dealt round robin: number ``j * world_size + rank`` of the global batch is this rank's j-th.

    Raises:
        UserError: the global batch does not divide into whole micro-batches for every rank.
    """
    assert 0 <= rank < world_size, f"rank {rank} of {world_size}"
    refuse_uneven(global_batch_size, micro_batch_size, world_size)
    return np.arange(global_batch_size, dtype=np.int64).reshape(-1, world_size, micro_batch_size)[:, rank]


def refuse_uneven(global_batch_size: int, micro_batch_size: int, world_size: int) -> None:
    """Refuse a global batch that does not divide into whole micro-batches for every rank, by UserError."""
    if global_batch_size < 1 or global_batch_size % (micro_batch_size * world_size):
        raise UserError(
            f"global_batch_size {global_batch_size} does not divide into micro-batches of {micro_batch_size} on "
            f"{counted(world_size, 'rank')}: {_what_divides(global_batch_size, micro_batch_size, world_size)}"
        )


def refuse_misfit(recipe: Recipe, num_ranks: int) -> None:
    """Refuse ranks, or micro-batches of a pipeline, that do not go with a recipe, before any rank is connected.

    Raises:
        UserError: the sizes in ``[parallel]`` do not multiply to the number of ranks, the global batch does not divide
            among them, or it has too few micro-batches for the stages of a pipeline.
    """
    training, sizes = recipe.training, recipe.parallel.sizes(num_ranks)
    num_shares = sizes.replicate * sizes.shard
    refuse_uneven(training.global_batch_size, training.micro_batch_size, num_shares)
    if sizes.pipeline > 1:
        num_batches = training.global_batch_size // (training.micro_batch_size * num_shares)
        rounds_of(num_batches, sizes.pipeline, recipe.parallel.pipeline_schedule)


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
        vocab_size: of the model, to refuse tokens that it does not have; None to let all pass.
        pin_memory: put tensors into page-locked memory, from which copies to a GPU overlap with its work.
        prefetch: how many steps to make ahead.

    Attributes:
        next_sample: number of the first sample not handed out yet; the whole state.

    Raises:
        UserError: as `micro_batch_offsets`.
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
        pin_memory: bool = False,
        prefetch: int = 2,
    ) -> None:
        self._maker = maker
        self._global_batch_size = global_batch_size
        self._offsets = micro_batch_offsets(
            global_batch_size=global_batch_size, micro_batch_size=micro_batch_size, rank=rank, world_size=world_size
        )
        self._vocab_size, self._pin_memory, self._prefetch = vocab_size, pin_memory, prefetch
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hornbook-loader")
        self._pending: deque[Future[list[Batch]]] = deque()
        self._closed = False
        self.next_sample = start_sample

    def __iter__(self) -> Self:
        return self

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
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _step(self, first_sample: int) -> list[Batch]:
        batches = self._maker.batches(first_sample + self._offsets)
        if self._vocab_size is not None:
            for batch in batches:
                refuse_unknown_tokens(batch, self._vocab_size)
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
