"""Batches of token ids that the caller passes, without a store: padded rows and their targets.

    [5, 9, 7], [8, 3]    ->    tokens   5 9 7      targets   9 7 .        . is NOT_SCORED
                                        8 3 0                3 . .

A decoder's rows are padded on the right; no token attends there, so padding changes nothing.
"""

from collections.abc import Sequence

import numpy as np
import torch

from hornbook.arrays import Int64s
from hornbook.samples.batches import Batch
from hornbook.samples.layout import lay_out
from hornbook.samples.sequences import TokenSequence
from hornbook.samples.windows import NOT_SCORED


def decoder_batch(sequences: Sequence[Sequence[int] | Int64s]) -> Batch:
    """Return a decoder batch, one sequence per row: ``tokens``, ``targets``, ``positions`` and ``keys``, [B, T] each.

    Args:
        sequences: B sequences of at least one id each; T is the length of the longest.
    """
    shape = len(sequences), max(map(len, sequences))
    tokens, targets = np.zeros(shape, dtype=np.int64), np.full(shape, NOT_SCORED, dtype=np.int64)
    for row, ids in enumerate(sequences):
        tokens[row, : len(ids)] = ids
        targets[row, : len(ids) - 1] = ids[1:]
    return {
        "tokens": torch.from_numpy(tokens),
        "targets": torch.from_numpy(targets),
        "positions": torch.arange(shape[1]).expand(shape).contiguous(),
        "keys": torch.zeros(shape, dtype=torch.int64),
    }


class GivenTokens:
    """Sequences for a decoder, of which every token but the first is scored: a `hornbook.samples.batches.HeldOut`."""

    def __init__(self, sequences: Sequence[Int64s]) -> None:
        self._sequences = sequences

    @property
    def num_items(self) -> int:
        """How many sequences there are."""
        return len(self._sequences)

    def batch(self, numbers: Int64s, /) -> Batch:
        nothing = self._sequences[0][:1]
        return decoder_batch([self._sequences[n] if n < self.num_items else nothing for n in numbers.tolist()])


class GivenMasked:
    """Sequences for an encoder, scored at the positions that have labels: a `hornbook.samples.batches.HeldOut`."""

    def __init__(self, sequences: Sequence[TokenSequence]) -> None:
        self._sequences = sequences

    @property
    def num_items(self) -> int:
        """How many sequences there are."""
        return len(self._sequences)

    def batch(self, numbers: Int64s, /) -> Batch:
        nothing = self._sequences[0].unscored()
        chosen = [self._sequences[n] if n < self.num_items else nothing for n in numbers.tolist()]
        return lay_out(chosen, width=max(len(one.tokens) for one in chosen), layout="padded", pad_id=0)
