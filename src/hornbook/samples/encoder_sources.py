"""Turn token stores into the sequences of an encoder's objective.

    mlm_nsp                       PairSequences        next-sentence pairs, of a sentence store
    mlm, sequences "joined"       JoinedSequences      documents end to end, cut to length
    mlm, sequences "documents"    DocumentSequences    each document cut to length
    mlm, sequences "lines"        LineSequences        each sentence by itself

Several stores are blended by their weights, as windows are (`hornbook.samples.mixture`). The sequences are then masked
as the objective says (`hornbook.samples.layout`).
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from hornbook.arrays import Int64s
from hornbook.config import MaskedLMConfig, MaskingConfig, PretrainingConfig
from hornbook.corpora.store import TokenStore
from hornbook.samples.instances import InstanceSource
from hornbook.samples.layout import EncoderBatches
from hornbook.samples.masking import MaskRules, word_beginnings
from hornbook.samples.mixture import Blend, Provenance, seed_of_source, whole_shares
from hornbook.samples.pairs import PairRules
from hornbook.samples.sequences import (
    DocumentSequences,
    JoinedSequences,
    LineSequences,
    PairSequences,
    SequenceSource,
    StoredSequences,
    TokenSequence,
)
from hornbook.text.special_tokens import MaskingTokens
from hornbook.text.tokenizer import Tokenizer

HELD_OUT_SEED = 0
"""Seed of the pairs and masks of held-out sequences: the same in every run, so that losses can be compared."""


class MixedSequences:
    """Several sources as one; an epoch has as many sequences as all of them together.

    Args:
        sources: two or more, of one length.
        weights: weight of each source, in any proportion; empty for their sizes.
        seed: seed of the blend.
    """

    def __init__(self, sources: Sequence[StoredSequences], weights: Sequence[float], seed: int) -> None:
        sizes = [source.num_sequences for source in sources]
        self._sources, self._blend = sources, Blend(whole_shares(weights) if weights else sizes, seed)
        self.sequence_length = sources[0].sequence_length
        self.num_sequences = sum(sizes)
        parts = [source.fingerprint for source in sources] + [repr(float(weight)) for weight in weights]
        self.fingerprint = hashlib.sha256(":".join(parts).encode()).hexdigest()

    def sequences(self, samples: Int64s) -> list[TokenSequence]:
        owners, numbers = self._blend.locate(samples)
        found: dict[int, TokenSequence] = {}
        for owner in np.unique(owners).tolist():
            rows = np.flatnonzero(owners == owner)
            found |= zip(rows.tolist(), self._sources[owner].sequences(numbers[rows]), strict=True)
        return [found[row] for row in range(len(samples))]

    def provenance(self, sample: int) -> Provenance:
        """Return the provenance from the sample's source; see ``StoredSequences``."""
        owner, number = (int(found[0]) for found in self._blend.locate(np.array([sample])))
        return self._sources[owner].provenance(number)._replace(source=owner)


def sequence_source(
    objective: MaskingConfig,
    stores: Sequence[TokenStore],
    special: MaskingTokens,
    *,
    sequence_length: int,
    seed: int,
    weights: Sequence[float] = (),
) -> StoredSequences:
    """Return the sequences of one store or several.

    Args:
        objective: determines the kind of sequence.
        stores: one or more, made with one tokenizer.
        special: that tokenizer's special tokens.
        sequence_length: the most tokens per sequence, including special tokens.
        seed: seed of order, pairs and blend.
        weights: weight of each store, in any proportion; empty for their sizes.

    Raises:
        UserError: a store does not fit the objective.
    """
    sources = [
        _of_store(objective, store, special, sequence_length, seed_of_source(number, seed))
        for number, store in enumerate(stores)
    ]
    return sources[0] if len(sources) == 1 else MixedSequences(sources, weights, seed)


def store_batches(
    objective: MaskingConfig,
    stores: Sequence[TokenStore],
    tokenizer: Tokenizer,
    *,
    sequence_length: int,
    seed: int,
    weights: Sequence[float] = (),
) -> EncoderBatches:
    """Return padded batches of one store or several, masked as the objective says.

    Args:
        objective: determines the kind of sequence and the masks.
        stores: one or more, made with one tokenizer.
        tokenizer: the one that made the stores.
        sequence_length: the most tokens per sequence.
        seed: seed of order, pairs, blend and masks.
        weights: weight of each store, in any proportion; empty for their sizes.

    Raises:
        UserError: a store does not fit the objective, or the tokenizer lacks a special token.
    """
    special = tokenizer.require_masking()
    source = sequence_source(objective, stores, special, sequence_length=sequence_length, seed=seed, weights=weights)
    return masked_batches(objective, source, special, words=tokenizer if objective.whole_words else None, seed=seed)


def masked_batches(
    objective: MaskingConfig,
    source: SequenceSource,
    special: MaskingTokens,
    *,
    seed: int,
    words: Tokenizer | None = None,
) -> EncoderBatches:
    """Return padded batches of a source, masked as the objective says; whole words if ``words`` is given."""
    rules = MaskRules(
        special=special,
        probability=objective.mask_probability,
        begins_word=word_beginnings(words) if words else None,
        seed=seed,
    )
    most = objective.most_masked(source.sequence_length)
    return EncoderBatches(
        source=source,
        rules=rules,
        most_masked=min(most, source.sequence_length),
        layout="padded",
        seed=seed,
        has_pairs=isinstance(objective, PretrainingConfig),
        pad_id=special.pad,
    )


def instance_batches(
    objective: MaskingConfig, instances: InstanceSource, tokenizer: Tokenizer | None, *, seed: int
) -> EncoderBatches:
    """Return padded batches of instances, masked as the objective says if the file has no masks.

    Args:
        objective: determines whether there are pairs, and the masks.
        instances: an open file of instances.
        tokenizer: the one that made them; required for masking.
        seed: seed of keys and masks.

    Raises:
        UserError: the tokenizer lacks a special token.
    """
    if not instances.is_masked:
        assert tokenizer is not None, "open_sources requires a tokenizer for instances without masks"
        words = tokenizer if objective.whole_words else None
        return masked_batches(objective, instances, tokenizer.require_masking(), words=words, seed=seed)
    return EncoderBatches(
        source=instances,
        rules=None,
        most_masked=instances.max_predictions or objective.max_predictions or instances.sequence_length,
        layout="padded",
        seed=seed,
        has_pairs=isinstance(objective, PretrainingConfig),
        pad_id=0,
    )


def _of_store(
    objective: MaskingConfig, store: TokenStore, special: MaskingTokens, sequence_length: int, seed: int
) -> StoredSequences:
    if isinstance(objective, MaskedLMConfig):
        kinds: dict[str, Callable[..., StoredSequences]] = {
            "joined": JoinedSequences,
            "documents": DocumentSequences,
            "lines": LineSequences,
        }
        return kinds[objective.sequences](store, special, sequence_length=sequence_length, seed=seed)
    assert isinstance(objective, PretrainingConfig), f"no kind of sequence for {objective.name}"
    rules = PairRules(
        sequence_length=sequence_length,
        short_sequence_probability=objective.short_sequence_probability,
        seed=seed,
    )
    return PairSequences(store, special, rules)
