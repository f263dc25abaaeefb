from dataclasses import replace

import numpy as np
import pytest

from hornbook.samples.masking import MaskRules, dynamic_mask, static_mask, word_beginnings
from hornbook.text.special_tokens import MaskingTokens
from hornbook.text.tokenizer import Tokenizer

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
SPECIAL = MaskingTokens(cls=CLS, sep=SEP, mask=MASK, pad=PAD, vocab_size=100, special_ids=frozenset(range(5)))
RULES = MaskRules(special=SPECIAL, seed=11)
WORDS = replace(RULES, begins_word=np.arange(100) % 3 != 0)  # a third of the ids go on with a word


def sequences(count, shortest=8, longest=128, seed=0):
    """``[CLS] A [SEP] B [SEP]`` of random ids, some of them unknown; flat, with lengths and numbers."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(shortest, longest + 1, count)
    parts = []
    for length in lengths.tolist():
        tokens = draw.integers(5, 100, length)
        tokens[draw.random(length) < 0.01] = UNKNOWN
        tokens[[0, length // 2, -1]] = CLS, SEP, SEP
        parts.append(tokens)
    return np.concatenate(parts), lengths, np.arange(count) * 7


def counts_of(masked, lengths):
    return np.bincount(np.searchsorted(np.cumsum(lengths), masked.indices, side="right"), minlength=len(lengths))


def by(kind, batch, rules=RULES, most=32, **options):
    return (dynamic_mask if kind == "dynamic" else static_mask)(*batch, rules, most=most, **options)


KINDS = pytest.mark.parametrize("kind", ["dynamic", "static"])
WHOLE = pytest.mark.parametrize("rules", [RULES, WORDS], ids=["tokens", "words"])


@KINDS
@WHOLE
def test_what_is_hidden_is_text_and_its_labels_are_the_tokens_there(kind, rules):
    batch = sequences(300)
    masked = by(kind, batch, rules)
    tokens = batch[0]
    assert (np.diff(masked.indices) > 0).all()
    assert np.array_equal(masked.labels, tokens[masked.indices])
    others = np.ones(len(tokens), dtype=bool)
    others[masked.indices] = False
    assert np.array_equal(masked.tokens[others], tokens[others])
    hidden = {"dynamic": (CLS, SEP, UNKNOWN), "static": (CLS, SEP)}[kind]
    assert not np.isin(masked.labels, hidden).any()
    replaced = masked.tokens[masked.indices]
    assert not np.isin(replaced[replaced != masked.labels], (PAD, UNKNOWN, CLS, SEP)).any()


@KINDS
@WHOLE
def test_shares_of_80_10_10(kind, rules):
    batch = sequences(3000)
    masked = by(kind, batch, rules)
    new, old = masked.tokens[masked.indices], masked.labels
    num = len(old)
    hidden, kept = np.count_nonzero(new == MASK), np.count_nonzero(new == old)
    expected = np.array([0.8, 0.1 + 0.1 / 95, 0.1 - 0.1 / 95]) * num  # a random token is now and then the same
    found = np.array([hidden, kept, num - hidden - kept])
    assert num > 20_000
    assert ((found - expected) ** 2 / expected).sum() < 13.8  # chi-square, two degrees of freedom, p = 0.001
    others = np.bincount(new[(new != MASK) & (new != old)], minlength=100)[5:]
    assert ((others - others.mean()) ** 2 / others.mean()).sum() < 145  # 94 degrees of freedom


def test_dynamic_rate_and_independence():
    tokens, lengths, samples = sequences(3000, shortest=64)
    free = np.count_nonzero(tokens >= 5)
    masked = dynamic_mask(tokens, lengths, samples, RULES, most=128)
    deviation = np.sqrt(free * 0.15 * 0.85)
    assert abs(len(masked.indices) - 0.15 * free) < 3.3 * deviation
    neighbours = np.count_nonzero(np.diff(masked.indices) == 1)
    assert abs(neighbours / free - 0.15**2) < 0.002
    whole = dynamic_mask(tokens, lengths, samples, WORDS, most=128)
    assert abs(len(whole.indices) / free - 0.15) < 0.01


@WHOLE
def test_no_more_is_hidden_than_the_cap_and_what_is_above_goes_at_random(rules):
    batch = sequences(2000, shortest=128)
    masked = dynamic_mask(*batch, rules, most=16)
    counts = counts_of(masked, batch[1])
    assert counts.max() <= 16
    assert np.count_nonzero(counts == 16) > 800
    free = dynamic_mask(*batch, rules, most=128)
    assert np.isin(masked.indices, free.indices).all()
    places = masked.indices % 128
    halves = np.count_nonzero((places > 0) & (places < 64)), np.count_nonzero((places > 64) & (places < 127))
    assert abs(halves[0] / halves[1] * 62 / 63 - 1) < 0.03


@WHOLE
def test_static_number(rules):
    batch = sequences(800, shortest=3)
    masked = static_mask(*batch, rules, most=12)
    expected = np.minimum(12, np.maximum(1, [round(length * 0.15) for length in batch[1].tolist()]))
    expected = np.minimum(expected, np.maximum(batch[1] - 3, 0))
    counts = counts_of(masked, batch[1])
    if rules is RULES:
        assert np.array_equal(counts, expected)
    else:
        assert (counts <= expected).all() and (counts >= np.minimum(expected, 1)).all()
        assert counts.sum() > 0.95 * expected.sum()


@WHOLE
def test_a_long_sequence_has_enough_hidden_to_fit_with_them_in_front(rules):
    batch = sequences(300, shortest=120)
    counts = counts_of(static_mask(*batch, rules, most=20, room=128), batch[1])
    assert (batch[1] - counts + 20 <= 128).all()
    assert counts.max() == 20


@KINDS
def test_words_are_hidden_whole(kind):
    batch = sequences(500, shortest=60)
    tokens = batch[0]
    masked = by(kind, batch, WORDS, most=20)
    is_hidden = np.zeros(len(tokens), dtype=bool)
    is_hidden[masked.indices] = True
    goes_on = ~WORDS.begins_word[tokens] & (tokens >= 5)
    goes_on[1:] &= tokens[:-1] >= 5
    goes_on[0] = False
    joined = np.flatnonzero(goes_on)
    assert np.count_nonzero(is_hidden[joined]) > 100
    assert np.array_equal(is_hidden[joined], is_hidden[joined - 1])


@KINDS
@WHOLE
def test_a_pure_function_of_seed_and_sample(kind, rules):
    tokens, lengths, samples = batch = sequences(50)
    masked = by(kind, batch, rules)
    again = by(kind, batch, rules)
    assert all(np.array_equal(a, b) for a, b in zip(masked, again, strict=True))
    ends = np.cumsum(lengths)
    for number in (0, 17, 49):
        start, end = ends[number] - lengths[number], ends[number]
        alone = by(kind, (tokens[start:end], lengths[number : number + 1], samples[number : number + 1]), rules)
        assert np.array_equal(alone.tokens, masked.tokens[start:end])
    for other in (by(kind, batch, replace(rules, seed=12)), by(kind, (tokens, lengths, samples + 1), rules)):
        assert np.isin(other.indices, masked.indices).mean() < 0.4


@KINDS
def test_nothing_to_hide(kind):
    tokens = np.array([CLS, SEP, SEP])
    masked = by(kind, (tokens, np.array([3]), np.array([0])))
    assert masked.tokens.tolist() == tokens.tolist()
    assert masked.indices.size == masked.labels.size == 0
    empty = np.zeros(0, dtype=np.int64)
    assert by(kind, (empty, empty, empty)).indices.size == 0


def test_all_of_it():
    batch = sequences(20)
    masked = dynamic_mask(*batch, replace(RULES, probability=1.0), most=128)
    assert np.array_equal(masked.indices, np.flatnonzero(batch[0] >= 5))


def test_beginnings_of_words_by_the_tokenizer():
    texts = ["the cats sat on the mats, unbelievable cats"] * 30
    for kind, sizes in (("wordpiece", 100), ("byte-bpe", 300)):
        tokenizer = Tokenizer.train(texts, sizes, kind=kind)
        begins = word_beginnings(tokenizer)
        ids = tokenizer.encode("cats sat on mats")
        names = {number: name for name, number in tokenizer.vocab.items()}
        for place, number in enumerate(ids):
            expected = names[number].startswith("Ġ") if kind == "byte-bpe" else not names[number].startswith("##")
            assert begins[number] == expected
            assert place or kind == "byte-bpe" or expected
        assert all(begins[number] for number in tokenizer.special_ids)
        assert not begins.all()


@pytest.mark.parametrize("probability", [0.0, 1e-12, 0.5, 1 - 1e-12, 1.0])
@WHOLE
def test_shares_up_to_none_and_all(rules, probability):
    tokens, lengths, samples = sequences(200)
    masked = dynamic_mask(tokens, lengths, samples, replace(rules, probability=probability), most=128)
    is_text = ~np.isin(tokens, list(SPECIAL.special_ids))
    share = np.isin(np.flatnonzero(is_text), masked.indices).mean()
    assert share == (pytest.approx(0.5, abs=0.03) if probability == 0.5 else round(probability))
