"""Make batches for encoders by sample number: take sequences from a source, mask them, lay them out in rows.

    source.sequences(samples)  ->  dynamic_mask, unless they are already masked  ->  lay_out  ->  a batch each

Masks are a function of (seed, sample): each epoch masks other tokens, and the number of ranks, gradient accumulation
and layout change nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hornbook.arrays import Int64s
from hornbook.errors import DataError
from hornbook.samples.batches import Batch, token_keys
from hornbook.samples.hashing import repeat_first
from hornbook.samples.layout import Layout, lay_out
from hornbook.samples.masking import MaskRules, dynamic_mask
from hornbook.samples.sequences import SequenceSource, TokenSequence

_MEASURED_SEQUENCES = 1024


@dataclass(frozen=True, kw_only=True)
class EncoderBatches:
    """Makes batches of a source's sequences: a `hornbook.samples.batches.BatchMaker`, and a ``HeldOut``.

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
