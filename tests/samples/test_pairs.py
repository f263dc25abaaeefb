import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.errors import UserError
from hornbook.samples.pairs import PairRules, Sentences, chunks_at, first_sentences, pairs_at, truncated_lengths

LENGTHS = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=2, max_size=12)


def sentences_of(documents, unit=1):
    counts = np.array([len(lengths) for lengths in documents])
    ends = np.cumsum([length for lengths in documents for length in lengths]) * unit
    return Sentences(
        documents=np.arange(len(documents)) * 10,
        first=np.concatenate(([0], np.cumsum(counts))),
        offsets=np.concatenate(([0], ends[:-1])),
        end=int(ends[-1]),
        unit=unit,
    )


def random_documents(count, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.integers(1, 30, draw.integers(1, 40)).tolist() for _ in range(count)]


def plain_chunks(documents, rules, epoch, sentences):
    """The loop of Google's script over one document after the other, with the same draws."""
    number = 0
    for document in documents:
        place = 0
        while place < len(document):
            one = chunks_at(np.array([number + place]), np.array([number + len(document)]), sentences, rules, epoch)
            target, taken, length = int(one.target[0]), 0, 0
            while place + taken < len(document) and (not taken or length < target):
                length += document[place + taken]
                taken += 1
            split = int(one.split[0]) - number - place
            assert one.stop[0] == number + place + taken
            assert split == 1 if taken == 1 else 1 <= split < taken
            yield number + place
            place += split if one.is_random[0] else taken
        number += len(document)


@pytest.mark.parametrize("unit", [1, 2])
def test_chunks_are_those_of_the_plain_loop(unit):
    documents, rules = random_documents(30), PairRules(sequence_length=40, short_sequence_probability=0.3, seed=5)
    sentences = sentences_of(documents, unit)
    for epoch in (0, 3):
        expected = list(plain_chunks(documents, rules, epoch, sentences))
        assert first_sentences(sentences, rules, epoch).tolist() == expected
    assert first_sentences(sentences, rules, 0).tolist() != first_sentences(sentences, rules, 3).tolist()


@given(LENGTHS, st.integers(5, 60), st.integers(0, 2**63), st.integers(0, 50))
def test_every_pair_fits_and_is_what_its_label_says(documents, sequence_length, seed, epoch):
    sentences = sentences_of(documents)
    rules = PairRules(sequence_length=sequence_length, short_sequence_probability=0.5, seed=seed)
    pairs = pairs_at(first_sentences(sentences, rules, epoch), sentences, rules, epoch)
    assert (pairs.a_length >= 1).all() and (pairs.b_length >= 1).all()
    assert (pairs.a_length + pairs.b_length <= rules.room).all()
    totals = np.array([sum(lengths) for lengths in documents])
    for document, start, length in (pairs[:3], pairs[3:6]):
        assert (start >= 0).all()
        assert (start + length <= totals[document // 10]).all()
    same = pairs.a_document == pairs.b_document
    assert np.array_equal(same, pairs.label == 0)
    assert (pairs.b_start >= pairs.a_start + pairs.a_length)[same].all()


def test_without_truncation_every_token_is_seen_as_a_or_as_what_follows():
    documents = [[2] * 50, [3] * 20, [1]]
    sentences = sentences_of(documents)
    rules = PairRules(sequence_length=33, short_sequence_probability=0, seed=1)
    pairs = pairs_at(first_sentences(sentences, rules, 0), sentences, rules, 0)
    for number, lengths in enumerate(documents):
        seen = np.zeros(sum(lengths), dtype=int)
        for a, start, length, b, b_start, b_length, label in zip(*pairs, strict=True):
            if a == number * 10:
                seen[start : start + length] += 1
            if b == number * 10 and not label:
                seen[b_start : b_start + b_length] += 1
        assert (seen == 1).all()


def test_a_chunk_can_be_made_alone():
    sentences = sentences_of(random_documents(20))
    rules = PairRules(sequence_length=30, seed=2)
    starts = first_sentences(sentences, rules, 4)
    together = pairs_at(starts, sentences, rules, 4)
    for number in (0, 7, len(starts) - 1):
        alone = pairs_at(starts[number : number + 1], sentences, rules, 4)
        assert [values[0] for values in alone] == [values[number] for values in together]


def test_shares_are_those_of_the_rules():
    sentences = sentences_of([[3] * 40] * 500)
    rules = PairRules(sequence_length=64, short_sequence_probability=0.1, seed=3)
    starts = first_sentences(sentences, rules, 0)
    owner = np.searchsorted(sentences.first, starts, side="right") - 1
    chunks = chunks_at(starts, sentences.first[owner + 1], sentences, rules, 0)
    pairs = pairs_at(starts, sentences, rules, 0)
    assert len(starts) > 1000
    assert 0.07 < np.mean(chunks.target < rules.room) < 0.12
    many = chunks.stop - chunks.start > 1
    assert 0.46 < pairs.label[many].mean() < 0.54
    assert (pairs.label[~many] == 1).all()
    assert len(np.unique(pairs.b_document[pairs.label == 1])) > 300
    short = chunks.target[chunks.target < rules.room]
    assert short.min() < 8 and short.max() > 52


@given(st.integers(1, 90), st.integers(1, 90), st.integers(2, 60))
def test_truncation_takes_from_the_longer_one_by_one(a, b, room):
    left_a, left_b = a, b
    while left_a + left_b > room:
        if left_a > left_b:
            left_a -= 1
        else:
            left_b -= 1
    found = truncated_lengths(np.array([a]), np.array([b]), room)
    assert (found[0][0], found[1][0]) == (left_a, left_b)


def test_truncation_cuts_at_both_ends_by_fair_coins():
    sentences = sentences_of([[300]] * 400)
    rules = PairRules(sequence_length=103, short_sequence_probability=0, seed=7)
    pairs = pairs_at(first_sentences(sentences, rules, 0), sentences, rules, 0)
    assert (pairs.a_length == 50).all() and (pairs.b_length == 50).all()
    for starts in (pairs.a_start, pairs.b_start):  # 250 coins: mean 125, deviation 7.9
        assert 124 < starts.mean() < 126
        assert 6.9 < starts.std() < 8.9
    assert abs(np.corrcoef(pairs.a_start, pairs.b_start)[0, 1]) < 0.2


def test_what_cannot_be_paired_is_refused():
    with pytest.raises(UserError, match=r"at least two documents.*has 1 with text"):
        first_sentences(sentences_of([[3, 4]]), PairRules(sequence_length=20, seed=0), 0)
    with pytest.raises(UserError, match="at least 5 tokens; got 4"):
        first_sentences(sentences_of([[3], [4]]), PairRules(sequence_length=4, seed=0), 0)
