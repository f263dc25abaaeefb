"""What a model is fed: batches of tensors, made of samples by their numbers.

A batch is a dict of int64 tensors, batch-first. Of windows it holds ``tokens``, ``targets`` (-100: not scored),
``positions`` and ``keys`` (32 random bits a token, the source of dropout), each [B, T]; and ``documents`` where
attention is to stay within documents. Positions run from 0 to T - 1 across documents, as in GPT-2: documents mask
attention, nothing else. What batches of an encoder hold is said in `hornbook.samples.encoder_batches`.

A ``BatchMaker`` answers sample numbers and a ``HeldOut`` window numbers, both without a state: so any number of ranks,
any prefetch depth and any resume point see the same batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from hornbook.arrays import Int64s, Integers
from hornbook.errors import DataError
from hornbook.samples.hashing import Purpose, mix64
from hornbook.samples.windows import NOT_SCORED, EvaluationWindows, Window

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
    shows_padding: bool = False
    noun: str = "window"
    facts: Mapping[str, str] = field(default_factory=dict)
    """What a reader wants to know of them before the first step."""


class WindowSource(Protocol):
    """Windows by sample number: `hornbook.samples.windows.Windows` is one."""

    @property
    def sequence_length(self) -> int:
        """T, the inputs of a window."""

    def batch(self, samples: Int64s, /) -> Window:
        """The windows of the samples B, stacked: int64[B, T+1]."""


class WindowBatches:
    """Training batches of windows for a decoder.

    Args:
        windows: the samples.
        seed: of the keys.
        document_mask: whether batches hold ``documents``.
    """

    def __init__(self, windows: WindowSource, *, seed: int, document_mask: bool) -> None:
        self._windows, self._seed, self._document_mask = windows, seed, document_mask

    def batches(self, samples: Int64s, /) -> list[Batch]:
        """All windows are read at once, then cut into micro-batches; see ``BatchMaker``."""
        window = self._windows.batch(samples.reshape(-1))
        whole = _as_batch(
            tokens=window.tokens[:, :-1],
            targets=window.tokens[:, 1:],
            keys=token_keys(self._seed, samples.reshape(-1), self._windows.sequence_length),
            documents=window.documents[:, :-1] if self._document_mask else None,
        )
        parts = {name: torch.split(tensor, samples.shape[1]) for name, tensor in whole.items()}
        return [{name: parts[name][number] for name in parts} for number in range(len(samples))]


class HeldOutWindows:
    """Windows of a held-out store. Keys are zero: nothing random happens in an evaluation."""

    def __init__(self, windows: EvaluationWindows, *, document_mask: bool = False) -> None:
        self.windows, self._document_mask = windows, document_mask

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
        )


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


def _as_batch(
    *,
    tokens: Int64s,
    targets: Int64s,
    keys: Int64s,
    documents: Int64s | None,
) -> Batch:
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int64), tokens.shape)
    arrays: dict[str, NDArray[Any]] = {"tokens": tokens, "targets": targets, "positions": positions, "keys": keys}
    if documents is not None:
        arrays["documents"] = documents
    return {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}
