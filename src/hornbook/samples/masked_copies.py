"""Copies of a text in each of which one token is masked: the input of pseudo-perplexity.

    [CLS] the cat sat [SEP]     ->      0  [CLS] [MASK] cat sat [SEP]       predicted: the
                                        1  [CLS] the [MASK] sat [SEP]                  cat
                                        2  [CLS] the cat [MASK] [SEP]                  sat

Copies are numbered over all texts, and each is made on demand: n tokens cost n forward passes over their text, and the
memory of one batch.
"""

from collections.abc import Sequence

import numpy as np

from hornbook.arrays import Int64s
from hornbook.samples.batches import Batch
from hornbook.samples.layout import Layout, lay_out
from hornbook.samples.sequences import TokenSequence
from hornbook.text.special_tokens import MaskingTokens


class MaskedCopies:
    """Copies of texts with one masked token in each: a `hornbook.samples.batches.HeldOut`.

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
