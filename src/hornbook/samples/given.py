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
from hornbook.samples.layout import Layout, lay_out
from hornbook.samples.sequences import TokenSequence
from hornbook.samples.windows import NOT_SCORED
from hornbook.text.special_tokens import MaskingTokens


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


class MaskedCopies:
    """Copies of texts with one masked token in each: a `hornbook.samples.batches.HeldOut`, for pseudo-perplexity.

    ::

        [CLS] the cat sat [SEP]     ->      0  [CLS] [MASK] cat sat [SEP]       predicted: the
                                            1  [CLS] the [MASK] sat [SEP]                  cat
                                            2  [CLS] the cat [MASK] [SEP]                  sat

    Copies are numbered over all texts, and each is made on demand: n tokens cost n forward passes over their text.

    Args:
        sequences: at least one, with [CLS] and [SEP], which are not masked.
        special: the tokenizer's special tokens.
        layout: layout of the batches.
    """

    def __init__(self, sequences: Sequence[TokenSequence], special: MaskingTokens, layout: Layout) -> None:
        frame = (special.cls, special.sep, special.pad)
        self._sequences, self._special, self._layout = sequences, special, layout
        self._masked = [np.flatnonzero(~np.isin(sequence.tokens, frame)) for sequence in sequences]
        self._ends = np.cumsum([len(indices) for indices in self._masked])
        self._width = max(len(sequence.tokens) for sequence in sequences)

    @property
    def num_items(self) -> int:
        """The number of copies of all texts."""
        return int(self._ends[-1])

    def batch(self, numbers: Int64s, /) -> Batch:
        exists = numbers < self.num_items
        copies = [self._copy(number) for number in np.where(exists, numbers, 0).tolist()]
        scored = [copy if there else copy.unscored() for copy, there in zip(copies, exists, strict=True)]
        return lay_out(scored, width=self._width, layout=self._layout, pad_id=self._special.pad)

    def _copy(self, number: int) -> TokenSequence:
        owner = int(np.searchsorted(self._ends, number, side="right"))
        sequence, indices = self._sequences[owner], self._masked[owner]
        index = indices[[number - int(self._ends[owner])]]
        tokens = sequence.tokens.copy()
        tokens[index] = self._special.mask
        return sequence._replace(tokens=tokens, positions=index, labels=sequence.tokens[index])
