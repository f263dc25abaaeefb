"""Lay out sequences of different lengths in the rows of an encoder's batch.

    sequences     aaaaa bb cccc        sequence_length T = 8

    padded        aaaaa...             one sequence per row
                  bb......
                  cccc....
    packed        aaaaabb.             as many per row as fit: longest first, each into the first row with room
                  cccc....
    unpadded      aaaaabbcccc          one row, no padding at all

The model keeps sequences apart in every layout, so the loss is the same; the layouts differ in cost. Padding is
computed like tokens. Packed rows keep fixed widths, which GPUs and compilers prefer. Unpadded rows waste nothing, but
their width changes from batch to batch. ``choose_layout`` decides by the measured lengths.

A batch holds, as int64, for B rows of T positions with S sequences and P predicted tokens:

    tokens, positions, segments, keys [B, T]    padding is the padding token and zeros; positions restart per sequence
    firsts, lengths, pair_labels [S]            index of each sequence's first token in the flattened rows; its length
    predictions, targets [P]                    flat indices of the masked tokens, and their original tokens

In padded and packed batches P is fixed at S times the most predictions per sequence and filled up with targets of -100:
shapes that depend on the data would cause recompilation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from hornbook.arrays import Int64s
from hornbook.errors import DataError
from hornbook.samples.batches import Batch, token_keys
from hornbook.samples.hashing import repeat_first
from hornbook.samples.masking import MaskRules, dynamic_mask
from hornbook.samples.sequences import SequenceSource, TokenSequence
from hornbook.samples.windows import NOT_SCORED

Layout: TypeAlias = Literal["padded", "packed", "unpadded"]

_LITTLE_PADDING = 0.05


class Placement(NamedTuple):
    """The positions of sequences in the rows of a batch.

    Attributes:
        firsts: int64[S], index of each sequence's first token in the flattened rows.
        num_rows: B.
        width: T.
    """

    firsts: Int64s
    num_rows: int
    width: int


def lay_out(
    sequences: Sequence[TokenSequence],
    *,
    width: int,
    layout: Layout,
    pad_id: int,
    keys: Int64s | None = None,
    has_pairs: bool = False,
    num_predictions: int | None = None,
) -> Batch:
    """Return a batch of masked sequences.

    Args:
        sequences: S of them, of ``width`` tokens at most.
        width: T of padded and packed rows.
        layout: see the module.
        pad_id: the padding token.
        keys: int64[S, width] in [0, 2**32), by position in the sequence; None for zeros.
        has_pairs: whether to add ``pair_labels``.
        num_predictions: P, filled up; None for the number of masked tokens.
    """
    lengths = np.array([len(sequence.tokens) for sequence in sequences], dtype=np.int64)
    placement = place_sequences(lengths, width, layout)
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(numbers)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    flat = placement.firsts[numbers] + positions
    filled = {
        "tokens": (pad_id, np.concatenate([sequence.tokens for sequence in sequences])),
        "positions": (0, positions),
        "segments": (0, np.concatenate([sequence.segments for sequence in sequences])),
        "keys": (0, np.zeros_like(positions) if keys is None else keys[numbers, positions]),
    }
    arrays = {}
    for name, (fill, values) in filled.items():
        row = np.full(placement.num_rows * placement.width, fill, dtype=np.int64)
        row[flat] = values
        arrays[name] = row.reshape(placement.num_rows, placement.width)
    found = [(s.positions, s.labels) for s in sequences if s.positions is not None and s.labels is not None]
    predictions = np.concatenate([first + own for first, (own, _) in zip(placement.firsts, found, strict=True)])
    targets = np.concatenate([labels for _, labels in found])
    missing = 0 if num_predictions is None else num_predictions - len(targets)
    arrays |= {
        "firsts": placement.firsts,
        "lengths": lengths,
        "predictions": np.pad(predictions, (0, missing)),
        "targets": np.pad(targets, (0, missing), constant_values=NOT_SCORED),
    }
    if has_pairs:
        arrays["pair_labels"] = np.array([sequence.pair_label for sequence in sequences], dtype=np.int64)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def place_sequences(lengths: Int64s, width: int, layout: Layout) -> Placement:
    """Return the placement of sequences with these lengths (each 1 to ``width``), a pure function of them."""
    if layout == "unpadded":
        return Placement(np.cumsum(lengths) - lengths, 1, int(lengths.sum()))
    if layout == "padded":
        return Placement(np.arange(len(lengths), dtype=np.int64) * width, len(lengths), width)
    firsts, used = np.zeros(len(lengths), dtype=np.int64), list[int]()
    for number in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[number])
        row = next((row for row, taken in enumerate(used) if taken + length <= width), len(used))
        used += [0] * (row == len(used))
        firsts[number] = row * width + used[row]
        used[row] += length
    return Placement(firsts, len(used), width)


def choose_layout(
    mean: float, sequence_length: int, *, on_cpu: bool, asked: Layout | Literal["auto"] = "auto"
) -> Layout:
    """Return the layout for sequences of a ``mean`` length: a CPU takes any width, other devices prefer a fixed width.

    ``asked`` is the recipe's ``data.layout``; anything but "auto" decides.
    """
    if asked != "auto":
        return asked
    if 1.0 - mean / sequence_length < _LITTLE_PADDING:
        return "padded"
    return "unpadded" if on_cpu else "packed"


_MEASURED_SEQUENCES = 1024


@dataclass(frozen=True, kw_only=True)
class EncoderBatches:
    """Makes batches of a source's sequences: a `hornbook.samples.batches.BatchMaker`, and a ``HeldOut``.

    ::

        source.sequences(samples)  ->  dynamic_mask, unless they are already masked  ->  lay_out  ->  a batch each

    Masks are a function of (seed, sample): each epoch masks other tokens, and the number of ranks, gradient
    accumulation and layout change nothing.

    Attributes:
        source: the sequences.
        rules: what to mask; None if all sequences are already masked.
        most_masked: the most predicted tokens per sequence.
        layout: of every batch.
        seed: seed of the keys.
        has_pairs: whether to add ``pair_labels`` to the batches.
        pad_id: the padding token.
        max_samples: the most sequences per epoch; every epoch then has the same ones
            (`hornbook.samples.hashing.repeat_first`), with new masks; None for all.
    """

    source: SequenceSource
    rules: MaskRules | None
    most_masked: int
    layout: Layout
    seed: int
    has_pairs: bool
    pad_id: int
    max_samples: int | None = None

    @property
    def num_items(self) -> int:
        """Sequences per epoch."""
        return min(self.source.num_sequences, self.max_samples or self.source.num_sequences)

    def among_all(self, samples: Int64s) -> Int64s:
        """Return the numbers of these samples in the source."""
        return repeat_first(samples, size=self.num_items, whole=self.source.num_sequences, seed=self.seed)

    def batches(self, samples: Int64s, /) -> list[Batch]:
        numbers, size = samples.reshape(-1), samples.shape[1]
        sequences = self.sequences(numbers)
        keys = token_keys(self.seed, numbers, self.source.sequence_length)
        starts = range(0, len(sequences), size)
        return [self._lay_out(sequences[start : start + size], keys[start : start + size]) for start in starts]

    def batch(self, numbers: Int64s, /) -> Batch:
        """Return sequences of the first epoch, with the same masks each time and keys of zero; see ``HeldOut``."""
        exists = numbers < self.num_items
        sequences = self.sequences(np.where(exists, numbers, 0))
        scored = [found if there else found.unscored() for found, there in zip(sequences, exists, strict=True)]
        return self._lay_out(scored, None)

    def mean_length(self) -> float:
        """Return the mean number of tokens per sequence, measured on the first sequences."""
        samples = np.arange(min(self.num_items, _MEASURED_SEQUENCES), dtype=np.int64)
        return float(np.mean([len(sequence.tokens) for sequence in self.source.sequences(samples)]))

    def sequences(self, samples: Int64s) -> list[TokenSequence]:
        """Return the masked sequences of these samples.

        Raises:
            DataError: an already masked sequence has more predictions than allowed, or one to be masked has a token
                outside the tokenizer's vocabulary.
        """
        sequences = self.source.sequences(samples if self.max_samples is None else self.among_all(samples))
        if self.rules is None:
            most = max(0 if sequence.labels is None else len(sequence.labels) for sequence in sequences)
            if most > self.most_masked:
                raise DataError(
                    f"an instance has {most} masked tokens, but objective.max_predictions is {self.most_masked}: set "
                    "it to the file's maximum, or leave it out"
                )
            return sequences
        lengths = np.array([len(sequence.tokens) for sequence in sequences], dtype=np.int64)
        tokens = np.concatenate([sequence.tokens for sequence in sequences])
        vocab_size = self.rules.special.vocab_size
        if len(unknown := tokens[(tokens < 0) | (tokens >= vocab_size)]):
            raise DataError(
                f"the data contain token {unknown[0]}, but the tokenizer has only 0 to {vocab_size - 1}: use the "
                "tokenizer that made the data, or rebuild the data"
            )
        masked = dynamic_mask(tokens, lengths, samples, self.rules, most=self.most_masked)
        ends = np.cumsum(lengths)
        cuts = np.searchsorted(masked.indices, ends[:-1])
        parts = zip(
            sequences,
            np.split(masked.tokens, ends[:-1]),
            np.split(masked.indices, cuts),
            np.split(masked.labels, cuts),
            (ends - lengths).tolist(),
            strict=True,
        )
        return [
            sequence._replace(tokens=own, positions=indices - start, labels=labels)
            for sequence, own, indices, labels, start in parts
        ]

    def _lay_out(self, sequences: Sequence[TokenSequence], keys: Int64s | None) -> Batch:
        return lay_out(
            sequences,
            width=self.source.sequence_length,
            layout=self.layout,
            pad_id=self.pad_id,
            keys=keys,
            has_pairs=self.has_pairs,
            num_predictions=None if self.layout == "unpadded" else len(sequences) * self.most_masked,
        )
