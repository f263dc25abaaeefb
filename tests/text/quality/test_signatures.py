import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_documents import some_words

from hornbook.text.quality import duplicates
from hornbook.text.quality.duplicates import NUM_HASHES, num_equal, shingles, signature_of


def true_similarity(first, second):
    """Jaccard's, of the sets of 5-word sequences."""
    sets = []
    for text in (first, second):
        words = re.findall(r"\w+", text.lower())
        sets.append({tuple(words[place : place + 5]) for place in range(max(1, len(words) - 4))})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def similarity(first, second):
    """Jaccard's, as ``num_equal`` estimates it by two signatures; unbiased, so it may be below 0."""
    return (256 * float(np.mean(first == second)) - 1) / 255


def pair(num_words, share, seed):
    """Two texts whose words are the same up to a place and differ from there on."""
    same = some_words(round(num_words * share), seed)
    rest = num_words - len(same)
    return tuple(" ".join(same + some_words(rest, 1000 + 2 * seed + side)) for side in (0, 1))


@given(st.integers(5, 400), st.floats(0, 1), st.integers(0, 2**20))
@settings(deadline=None, max_examples=200)
def test_the_estimate_is_near_the_truth(num_words, share, seed):
    first, second = pair(num_words, share, seed)
    truth = true_similarity(first, second)
    error = similarity(signature_of(first), signature_of(second)) - truth
    assert abs(error) < 5.5 * np.sqrt(truth * (1 - truth) / NUM_HASHES) + 6 / NUM_HASHES
    assert error == 0 or truth < 1


def test_short_texts_are_as_unlike_as_long_ones():
    """Two texts of one sequence each: every byte agrees once in 256, but not all of them together."""
    texts = [signature_of(" ".join(some_words(5, seed))) for seed in range(600)]
    equal = [int((first == second).sum()) for first, second in pairwise(texts)]
    assert max(equal) <= 6
    assert 0.35 < np.mean(equal) < 0.65  # 128 / 256


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_the_estimate_has_no_bias_and_the_deviation_that_theory_says(share):
    pairs = [pair(200, share, seed) for seed in range(300)]
    truth = np.mean([true_similarity(*texts) for texts in pairs])
    errors = [similarity(*map(signature_of, texts)) - truth for texts in pairs]
    deviation = np.sqrt((truth + 1 / 256) * (1 - truth) / NUM_HASHES)
    assert abs(np.mean(errors)) < 4 * deviation / np.sqrt(len(errors))
    assert 0.8 * deviation < np.std(errors) < 1.2 * deviation


def test_order_case_and_punctuation():
    text = " ".join(some_words(60, 1))
    assert (signature_of(text) == signature_of(text.upper().replace(" ", ",\n"))).all()
    assert similarity(signature_of(text), signature_of(" ".join(reversed(text.split())))) < 0.1


def test_short_texts():
    assert signature_of(" -- ") is None
    assert similarity(signature_of("one two"), signature_of("One, two!")) == 1
    assert similarity(signature_of("one two"), signature_of("one two three")) < 0.1
    assert sum(map(len, shingles("a b c"))) == sum(map(len, shingles("a b c d e"))) == 1
    assert sum(map(len, shingles("a b c d e f"))) == 2


@pytest.mark.parametrize("size", [1, 7, 29, 30, 31])
def test_chunks_do_not_change_the_signature(size, monkeypatch):
    text = " ".join(some_words(64, 5))  # 60 sequences
    whole = signature_of(text)
    monkeypatch.setattr(duplicates, "_CHUNK", size)
    assert (signature_of(text) == whole).all()


def test_the_signature_of_a_whole_is_that_of_its_parts():
    words = some_words(3000, 5)
    halves = [signature_of(" ".join(words[:1504])), signature_of(" ".join(words[1500:]))]
    assert signature_of(" ".join(words)).dtype == np.uint8
    assert ((signature_of(" ".join(words)) == halves[0]) | (signature_of(" ".join(words)) == halves[1])).all()


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 0.95, 1.0])
def test_the_needed_number_of_equal_bytes_is_the_threshold(threshold):
    needed = num_equal(threshold)
    of = [similarity(np.arange(128) < count, np.ones(128)) for count in (needed, needed - 1)]
    assert of[0] >= threshold - 1e-6 and of[1] < threshold
