import shutil
from dataclasses import replace

import numpy as np
import pytest
from tiny_sentences import sentence_store

from hornbook.corpora.store import open_store
from hornbook.errors import UserError
from hornbook.samples.pairs import PairRules
from hornbook.samples.sequences import (
    NO_PAIR,
    DocumentSequences,
    JoinedSequences,
    LineSequences,
    PairSequences,
    sentences_of,
)
from hornbook.text.special_tokens import MaskingTokens

CLS, SEP, END = 2, 3, 5
SPECIAL = MaskingTokens(cls=CLS, sep=SEP, mask=4, pad=0, vocab_size=60000, special_ids=frozenset(range(6)))
KINDS = (DocumentSequences, JoinedSequences, LineSequences)


def documents(count=25, seed=0):
    """Documents whose every token is another one, so that a token says where it is from."""
    draw = np.random.default_rng(seed)
    made, number = [], 100
    for _ in range(count):
        lengths = draw.integers(1, 20, draw.integers(1, 12)).tolist()
        ends = (number + np.cumsum(lengths)).tolist()
        made.append([list(range(end - length, end)) for end, length in zip(ends, lengths, strict=True)])
        number = ends[-1]
    return made


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return open_store(sentence_store(tmp_path_factory.mktemp("sequences") / "store", documents()))


def owners():
    return {token: number for number, sentences in enumerate(documents()) for one in sentences for token in one}


def pairs_of(store, length=40, seed=3, **options):
    return PairSequences(store, SPECIAL, PairRules(sequence_length=length, seed=seed, **options))


def all_of(source, epoch=0):
    return source.sequences(np.arange(source.num_sequences) + epoch * source.num_sequences)


def texts_of(sequence):
    """A and B of a pair, or the one text."""
    ends = np.flatnonzero(sequence.tokens == SEP)
    parts = np.split(sequence.tokens, ends + 1)
    assert sequence.tokens[0] == CLS and parts[-1].size == 0
    return [parts[0][1:-1].tolist(), *(part[:-1].tolist() for part in parts[1:-1])]


def test_pairs_are_what_their_labels_say(store):
    owner = owners()
    for epoch in (0, 1, 5):
        found = all_of(pairs_of(store), epoch)
        assert {sequence.pair_label for sequence in found} == {0, 1}
        for sequence in found:
            first, second = texts_of(sequence)
            assert len(sequence.tokens) <= 40 and first and second
            assert sequence.segments.tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
            assert sequence.tokens.dtype == sequence.segments.dtype == np.int64
            assert sequence.positions is None and sequence.labels is None
            for text in (first, second):
                assert text == list(range(text[0], text[-1] + 1))
            assert (owner[first[0]] != owner[second[0]]) == sequence.pair_label
            if not sequence.pair_label:
                assert second[0] > first[-1]


def test_an_epoch_holds_every_chunk_once_and_the_next_one_others(store):
    source = pairs_of(store)
    table = source.first_sentences(0)
    assert source.num_sequences == len(table)
    starts = sorted(tuple(sequence.tokens.tolist()) for sequence in all_of(source))
    assert len(set(starts)) == len(table)
    tables = [source.first_sentences(epoch).tolist() for epoch in range(6)]
    assert len({tuple(one) for one in tables}) == 6
    assert max(map(len, tables)) - min(map(len, tables)) < 0.3 * len(table)


@pytest.mark.parametrize("kind", [PairSequences, *KINDS])
def test_a_sequence_is_a_function_of_seed_and_sample(store, kind):
    def make(seed=3):
        return (
            pairs_of(store, seed=seed) if kind is PairSequences else kind(store, SPECIAL, sequence_length=12, seed=seed)
        )

    source = make()
    samples = np.arange(0, 4 * source.num_sequences, 3)
    tokens = [sequence.tokens.tolist() for sequence in source.sequences(samples)]
    for batch in (samples[:5], samples[::-1], samples[[7, 7, 0]]):
        numbers = [int(number) // 3 for number in batch]
        assert [one.tokens.tolist() for one in make().sequences(batch)] == [tokens[number] for number in numbers]
    assert [one.tokens.tolist() for one in make(4).sequences(samples)] != tokens
    assert make().fingerprint == source.fingerprint != make(4).fingerprint


def test_joined_text_goes_across_documents(store):
    source = JoinedSequences(store, SPECIAL, sequence_length=12, seed=1)
    stream = [token for one in documents() for sentence in one for token in sentence]
    found = all_of(source)
    assert source.num_sequences == (len(stream) + store.num_documents) // 10
    tokens = [token for sequence in found for token in sequence.tokens[1:-1].tolist()]
    assert all(len(sequence.tokens) == 12 and not sequence.segments.any() for sequence in found)
    assert all(sequence.tokens[0] == CLS and sequence.tokens[-1] == SEP for sequence in found)
    text = [token for token in tokens if token != SEP]
    assert len(set(text)) == len(text) >= len(stream) - 10
    assert {sequence.pair_label for sequence in found} == {NO_PAIR}
    assert abs(tokens.count(SEP) - store.num_documents) <= 10


@pytest.mark.parametrize("kind", [PairSequences, *KINDS])
def test_sentences_are_the_same_whether_end_of_text_is_absent_or_for_others_to_insert(store, kind):
    inserted = replace(store, end_of_text="inserted", end_of_text_id=7)
    sources = [
        pairs_of(one) if kind is PairSequences else kind(one, SPECIAL, sequence_length=12, seed=3)
        for one in (store, inserted)
    ]
    for old, new in zip(*map(all_of, sources), strict=True):
        assert np.array_equal(old.tokens, new.tokens) and np.array_equal(old.segments, new.segments)


def test_documents_and_lines_are_seen_whole_once_an_epoch(store):
    whole = DocumentSequences(store, SPECIAL, sequence_length=12, seed=1)
    pieces = sorted(texts_of(sequence)[0] for sequence in all_of(whole, 2))
    flat = [[token for sentence in one for token in sentence] for one in documents()]
    assert pieces == sorted(one[start : start + 10] for one in flat for start in range(0, len(one), 10))
    lines = LineSequences(store, SPECIAL, sequence_length=12, seed=1)
    assert sorted(texts_of(one)[0] for one in all_of(lines, 2)) == sorted(s[:10] for one in documents() for s in one)


@pytest.fixture
def odd(tmp_path):
    """Empty documents and sentences, and an end-of-text token at the end of each document, once as a sentence."""
    made = [[[10, 11], [], [12, END]], [[END]], [], [[13], [END]], [[], [14, 15, 16, END]]]
    return sentence_store(tmp_path / "odd", made, end_of_text_id=END)


def test_empty_sentences_and_stored_ends_are_left_out(odd):
    store = open_store(odd)
    sentences = sentences_of(store)
    assert sentences.documents.tolist() == [0, 3, 4]
    assert sentences.first.tolist() == [0, 2, 3, 4]
    assert sentences.offsets.tolist() == [0, 2, 3, 4] and sentences.end == 7
    expected = {
        LineSequences: [[10, 11], [12], [13], [14, 15, 16]],
        DocumentSequences: [[10, 11, 12], [13], [14, 15, 16]],
    }
    for kind, texts in expected.items():
        assert sorted(texts_of(one)[0] for one in all_of(kind(store, SPECIAL, sequence_length=9, seed=0))) == texts
    seen = [text for epoch in range(9) for one in all_of(pairs_of(store, 9), epoch) for text in texts_of(one)]
    assert {token for text in seen for token in text} == set(range(10, 17))


def test_the_index_is_not_copied_where_it_can_be_used(store, tmp_path):
    assert np.shares_memory(sentences_of(store).offsets, store.indexed.pointers)
    for suffix in (".bin", ".idx"):
        shutil.copy(store.path / f"tokens{suffix}", tmp_path / f"others{suffix}")
    others = pairs_of(open_store(tmp_path / "others"))
    for a, b in zip(all_of(pairs_of(store)), all_of(others), strict=True):
        assert np.array_equal(a.tokens, b.tokens)


def test_what_cannot_be_done_is_said(tmp_path, store):
    with pytest.raises(UserError, match=r"no sentences.*`hornbook corpus build --sequences sentences`"):
        pairs_of(open_store(sentence_store(tmp_path / "a", [[[9]], [[8]]], sequences="documents")))
    with pytest.raises(UserError, match="two documents"):
        pairs_of(open_store(sentence_store(tmp_path / "b", [[[9], [8]]])))
    for kind in KINDS:
        with pytest.raises(UserError, match="at least 3 tokens; got 2"):
            kind(store, SPECIAL, sequence_length=2, seed=0)
    for kind in (LineSequences, DocumentSequences):
        empty = tmp_path / kind.__name__
        with pytest.raises(UserError, match="no text"):
            kind(open_store(sentence_store(empty, [[[END]]], end_of_text_id=END)), SPECIAL, sequence_length=9, seed=0)
