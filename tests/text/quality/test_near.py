import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_documents import decisions_in_parts, document, kept, some_words
from tiny_text import SHARED, one_line

from hornbook.errors import UserError
from hornbook.text.quality import duplicates
from hornbook.text.quality.duplicates import NearDuplicates, SimilarityIndex, band_rows, num_equal

WEB = SHARED / "text" / "openwebtext-1000.jsonl"


def changed(words, share, seed):
    """The words with a share of them replaced, in one piece: a change of the similarity that can be computed."""
    count = round(len(words) * share)
    return [*words[: len(words) - count], *some_words(count, seed)]


def brute_force(signatures, threshold):
    """Which stay, by comparing with every one that stayed."""
    stayed, decisions = [], []
    for signature in signatures:
        similar = any(int((other == signature).sum()) >= num_equal(threshold) for other in stayed)
        decisions.append(not similar)
        stayed += [] if similar else [signature]
    return decisions


def decide(index, signatures):
    decisions = []
    for signature in signatures:
        decisions.append(not index.has_similar(signature))
        if decisions[-1]:
            index.extend(signature[None])
    return decisions


def clustered_signatures(count, seed, share=0.05):
    draws = np.random.default_rng(seed)
    centers = draws.integers(0, 256, (count // 4, 128), dtype=np.uint8)
    noise = draws.integers(0, 256, (count, 128), dtype=np.uint8)
    return np.where(draws.random((count, 128)) < share, noise, centers[draws.integers(0, len(centers), count)])


def test_the_first_of_a_cluster_stays():
    words, others = some_words(400, 1), some_words(400, 2)
    texts = [" ".join(item) for item in (words, changed(words, 0.02, 3), others, changed(words, 0.7, 4))]
    texts += [texts[0].upper() + "!", "...", "...", "some words", "Some words."]
    assert kept(NearDuplicates(0.8), texts) == [texts[0], texts[2], texts[3], "...", "...", "some words"]


def test_the_threshold_divides():
    for seed in range(20):
        words = some_words(600, seed)
        alike, unlike = (" ".join(changed(words, share, 100 + seed)) for share in (0.04, 0.25))  # 0.92 and 0.6
        assert kept(NearDuplicates(0.8), [" ".join(words), alike, unlike]) == [" ".join(words), unlike]


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 0.9, 1.0])
def test_bands_find_what_is_at_the_threshold(threshold):
    rows = band_rows(threshold)
    assert 1 - (1 - threshold**rows) ** (128 // rows) >= 0.99
    if rows < 128:
        assert 1 - (1 - threshold ** (rows + 1)) ** (128 // (rows + 1)) < 0.99


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 0.9, 1.0])
def test_the_estimate_at_the_threshold_is_enough_and_one_byte_less_is_not(threshold):
    signature = np.arange(128, dtype=np.uint8)
    for equal in range(129):
        other = signature.copy()
        other[equal:] += 128
        index = SimilarityIndex(threshold)
        index.extend(other[None])
        estimate = (256 * equal - 128) / (255 * 128)  # (256 e - 1) / 255 of the share e of equal bytes
        assert index.has_similar(signature) == (estimate >= threshold), equal
    assert num_equal(1.0) == 128


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_the_index_decides_as_comparing_all_with_all(threshold, monkeypatch):
    monkeypatch.setattr(duplicates, "_SMALLEST_TABLE", 16)
    signatures = clustered_signatures(600, 7)
    expected = brute_force(signatures, threshold)
    assert 100 < sum(expected) < 400
    assert decide(SimilarityIndex(threshold), signatures) == expected


@given(st.integers(0, 2**20), st.lists(st.integers(0, 80), max_size=5), st.sampled_from([0.3, 0.8]))
@settings(deadline=None, max_examples=50)
def test_an_index_is_the_same_however_it_was_filled(seed, cuts, threshold):
    signatures = clustered_signatures(80, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_SMALLEST_TABLE", 16)
        patch.setattr(duplicates, "_LINKED_AT_ONCE", 13)
        one, many = SimilarityIndex(threshold), SimilarityIndex(threshold)
        for signature in signatures:
            one.extend(signature[None])
        for part in np.split(signatures, sorted(cuts)):
            many.extend(part)
    for name in ("signatures", "_heads"):
        assert (getattr(one, name) == getattr(many, name)).all()
    assert (one._older[:80] == many._older[:80]).all()


@given(st.integers(0, 2**20), st.sets(st.integers(0, 40), max_size=4))
@settings(deadline=None, max_examples=30)
def test_a_resumed_build_decides_as_one_that_did_not_stop(seed, cuts):
    draws = random.Random(seed)
    bases = [some_words(60, seed + number) for number in range(8)]
    texts = [" ".join(changed(draws.choice(bases), draws.choice([0, 0.05, 0.2]), draws.random())) for _ in range(40)]
    whole = decisions_in_parts(lambda: NearDuplicates(0.7), texts, [])
    assert decisions_in_parts(lambda: NearDuplicates(0.7), texts, cuts) == whole
    assert 8 <= sum(whole) < 40


def test_memory_is_what_stayed():
    given_filter = NearDuplicates(0.8)
    for text in ("one two", "one two", "three four"):
        given_filter.keeps(document(text))
    memory = given_filter.new_memory()
    assert memory.dtype == np.uint64 and memory.shape == (2, 16)
    assert given_filter.new_memory().shape == (0, 16)
    resumed = NearDuplicates(0.8)
    resumed.remember(memory)
    assert kept(resumed, ["One two.", "five six"]) == ["five six"]
    assert resumed.new_memory().shape == (1, 16)


def hidden_behind_others(times):
    """An index with a signature, and newer ones that have a third of it each: every band leads to those first."""
    draws = np.random.default_rng(0)
    signature = draws.integers(0, 256, 128, dtype=np.uint8)
    others = draws.integers(0, 256, (3 * times, 128), dtype=np.uint8)
    for number, other in enumerate(others):
        third = slice(number % 3 * 42, number % 3 * 42 + 42)  # seven bands of six
        other[third] = signature[third]
    index = SimilarityIndex(0.8)
    index.extend(signature[None])
    index.extend(others)
    return index, signature


def test_chains_are_followed_to_their_end_but_not_for_ever(monkeypatch):
    assert SimilarityIndex.has_similar(*hidden_behind_others(times=4))
    monkeypatch.setattr(duplicates, "_LONGEST_CHAIN", 4)
    assert SimilarityIndex.has_similar(*hidden_behind_others(times=3))
    assert not SimilarityIndex.has_similar(*hidden_behind_others(times=4))


@pytest.mark.parametrize("threshold", [0.29, 1.01, float("nan"), -1])
def test_a_threshold_out_of_range_is_one_line(threshold):
    with pytest.raises(UserError) as caught:
        NearDuplicates(threshold)
    assert one_line(caught.value, f"{threshold:g}", "expected 0.3 to 1")


@pytest.mark.skipif(not WEB.exists(), reason="needs ../shared/data/text/openwebtext-1000.jsonl")
def test_edited_copies_of_web_pages_are_found():
    pages = [json.loads(line)["text"] for line in WEB.read_text().splitlines()[:300]]
    draws = random.Random(0)
    edited = []
    for page in pages[:100]:
        words = page.split(" ")
        for _ in range(len(words) // 200):
            words[draws.randrange(len(words))] = "edited"
        edited.append(" ".join(words).replace("the", "THE"))
    filtered = NearDuplicates(0.8)
    assert len(kept(filtered, pages)) == len(pages)
    assert len(kept(filtered, edited)) <= 2
