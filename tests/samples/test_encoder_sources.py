"""Which sequences an objective takes from stores, and how stores are blended."""

import numpy as np
import pytest
from tiny_encoder_runs import build_sentences, encoder_tokenizer
from tiny_sentences import sentence_store
from tiny_text import one_line, tiny_tokenizer

from hornbook.config import MaskedLMConfig, PretrainingConfig
from hornbook.corpora.store import open_store
from hornbook.errors import UserError
from hornbook.samples.encoder_sources import MixedSequences, sequence_source, store_batches
from hornbook.samples.mixture import seed_of_source
from hornbook.samples.sequences import DocumentSequences, JoinedSequences, LineSequences, PairSequences

LINES = MaskedLMConfig(sequences="lines")


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """One of words, and one of tokens of its own, which tell where a sequence is from."""
    folder = tmp_path_factory.mktemp("sources")
    documents = [[[40 + number, 41 + number]] * (1 + number % 3) for number in range(0, 18, 2)]
    other = sentence_store(folder / "other", documents, tokenizer=encoder_tokenizer())
    return [open_store(build_sentences(folder / "corpus")), open_store(other)]


def make(stores, objective=LINES, *, seed=3, weights=()):
    special = encoder_tokenizer().require_masking()
    return sequence_source(objective, stores, special, sequence_length=16, seed=seed, weights=weights)


def texts(source, samples):
    return [sequence.tokens.tolist() for sequence in source.sequences(np.asarray(samples, dtype=np.int64))]


@pytest.mark.parametrize(
    ("objective", "kind"),
    [
        (PretrainingConfig(), PairSequences),
        (MaskedLMConfig(), JoinedSequences),
        (MaskedLMConfig(sequences="documents"), DocumentSequences),
        (LINES, LineSequences),
    ],
)
def test_the_objective_decides(stores, objective, kind):
    source = make(stores[:1], objective)
    assert isinstance(source, kind) and source.sequence_length == 16
    mixed = make(stores, objective)
    assert isinstance(mixed, MixedSequences) and mixed.sequence_length == 16
    assert mixed.num_sequences == sum(make([store], objective).num_sequences for store in stores)


def test_without_weights_each_sequence_comes_once_an_epoch(stores):
    mixed = make(stores)
    expected = sorted(text for store in stores for text in texts(make([store]), range(make([store]).num_sequences)))
    for epoch in (0, 3):
        first = epoch * mixed.num_sequences
        assert sorted(texts(mixed, range(first, first + mixed.num_sequences))) == expected


def test_weights_are_the_shares_at_every_point(stores):
    mixed = make(stores, weights=(3.0, 1.0))
    own = {tuple(text) for text in texts(make(stores[1:]), range(make(stores[1:]).num_sequences))}
    from_other = np.cumsum([tuple(text) in own for text in texts(mixed, range(400))])
    assert np.abs(from_other - np.arange(1, 401) / 4).max() <= 1
    assert from_other[-1] == 100


def test_a_mixed_sequence_is_one_of_its_source_in_turn(stores):
    mixed = make(stores, PretrainingConfig(), weights=(1.0, 2.0))
    samples = range(150)
    found = texts(mixed, samples)
    assert texts(make(stores, PretrainingConfig(), weights=(1.0, 2.0)), [*samples][::-1]) == found[::-1]
    sources = [make([store], PretrainingConfig(), seed=seed_of_source(at, 3)) for at, store in enumerate(stores)]
    owners = [mixed.provenance(sample).source for sample in samples]
    for number, source in enumerate(sources):
        own = [text for text, owner in zip(found, owners, strict=True) if owner == number]
        assert own == texts(source, range(len(own)))
    assert owners.count(1) == 100


def test_the_fingerprint_is_of_stores_weights_and_rules(stores):
    whole = make(stores).fingerprint
    others = [
        make(stores[::-1]),
        make(stores, weights=(1.0, 1.0)),
        make(stores, MaskedLMConfig()),
        make(stores, seed=4),
    ]
    assert make(stores).fingerprint == whole
    assert len({whole, *(other.fingerprint for other in others)}) == 5


def test_batches_say_what_the_objective_says(stores):
    batches = store_batches(
        PretrainingConfig(mask_probability=0.2, max_predictions=5),
        stores[:1],
        encoder_tokenizer(),
        sequence_length=16,
        seed=3,
    )
    assert (batches.rules.probability, batches.rules.begins_word, batches.most_masked) == (0.2, None, 5)
    assert (batches.has_pairs, batches.pad_id, batches.seed) == (True, encoder_tokenizer().pad_id, 3)
    single = store_batches(
        MaskedLMConfig(whole_words=True, sequences="lines"),
        stores,
        encoder_tokenizer(),
        sequence_length=128,
        seed=0,
        weights=(1, 1),
    )
    assert (single.has_pairs, single.most_masked) == (False, 32)
    assert single.rules.begins_word.sum() < encoder_tokenizer().vocab_size


def test_a_tokenizer_without_a_mask_is_refused(stores):
    with pytest.raises(UserError) as caught:
        store_batches(LINES, stores, tiny_tokenizer(), sequence_length=16, seed=0)
    assert one_line(caught.value, "[MASK] or <mask>", "which encoders need")
