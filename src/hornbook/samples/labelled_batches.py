"""Batches of labeled sequences by sample number: those of `hornbook.samples.layout`, with ``labels``.

    labels    int64[S]      class number              classification
              int64[S, 2]   first and last token      spans, as positions in the sequence

Each epoch has all sequences, in an order that is a function of (seed, epoch): the number of ranks, accumulation and
layout change nothing, and the state of a loader is one number.
"""

from dataclasses import dataclass

import numpy as np
import torch

from hornbook.arrays import Int64s
from hornbook.samples.batches import Batch, token_keys
from hornbook.samples.hashing import permute
from hornbook.samples.layout import Layout, lay_out
from hornbook.samples.sequences import TokenSequence
from hornbook.samples.windows import NOT_SCORED


@dataclass(frozen=True, kw_only=True)
class LabelledBatches:
    """Labeled sequences, in batches: a `hornbook.samples.batches.BatchMaker` and a ``HeldOut``.

    Attributes:
        sequences: N sequences, at least one.
        labels: int64[N] or [N, 2].
        width: tokens per padded or packed row.
        layout: layout of every batch.
        pad_id: the padding token.
        seed: seed of order and keys.
    """

    sequences: list[TokenSequence]
    labels: Int64s
    width: int
    layout: Layout
    pad_id: int
    seed: int

    @property
    def num_items(self) -> int:
        """Sequences per epoch."""
        return len(self.sequences)

    @property
    def mean_length(self) -> float:
        """Mean number of tokens per sequence."""
        return float(np.mean([len(sequence.tokens) for sequence in self.sequences]))

    def batches(self, samples: Int64s, /) -> list[Batch]:
        epochs, indices = np.divmod(samples, self.num_items)
        numbers = permute(indices, size=self.num_items, seed=self.seed, epoch=epochs)
        keys = (token_keys(self.seed, row, self.width) for row in samples)
        return [self._batch(row, self.labels[row], of_row) for row, of_row in zip(numbers, keys, strict=True)]

    def batch(self, numbers: Int64s, /) -> Batch:
        """Return a batch with keys of zero; see ``HeldOut``."""
        exists = numbers < self.num_items
        numbers = np.where(exists, numbers, 0)
        labels = self.labels[numbers]
        labels[~exists] = NOT_SCORED
        return self._batch(numbers, labels, None)

    def _batch(self, numbers: Int64s, labels: Int64s, keys: Int64s | None) -> Batch:
        sequences = [self.sequences[number] for number in numbers.tolist()]
        batch = lay_out(sequences, width=self.width, layout=self.layout, pad_id=self.pad_id, keys=keys)
        return {**batch, "labels": torch.from_numpy(labels)}
