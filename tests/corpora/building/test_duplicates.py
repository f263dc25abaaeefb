import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_documents import comparing, droppers_of, parts_of, some_words
from tiny_text import SHARED

from hornbook.corpora.building import duplicates
from hornbook.corpora.building.batches import CANDIDATE
from hornbook.text.quality.duplicates import band_rows, num_equal, signature_of
from hornbook.text.quality.filters import Length

WEB = SHARED / "text" / "openwebtext-1000.jsonl"
TEXTS = st.lists(st.text("aB \n\u3000é", max_size=4), max_size=30)


def changed(words, share, seed):
    """The words with a share of them replaced, in one piece: a change of the similarity that can be computed."""
    count = round(len(words) * share)
    return [*words[: len(words) - count], *some_words(count, seed)]


def similar_ones(signatures, threshold):
    """Which a filter drops that compares one after the other with all that it kept and that share a band."""
    kept, dropped = [], []
    rows = band_rows(threshold)
    for number, signature in enumerate(signatures):
        for other in kept:
            equal = signature == signatures[other]
            bands = equal[: len(equal) // rows * rows].reshape(-1, rows).all(axis=1)
            if bands.any() and equal.sum() >= num_equal(threshold):
                dropped.append(number)
                break
        else:
            kept.append(number)
    return dropped


class FakePart:
    """A part that has nothing but signatures."""

    def __init__(self, signatures):
        self.signatures = self.candidates = len(signatures)
        self._signatures = signatures

    def candidate_rows(self):
        rows = np.zeros(len(self._signatures), dtype=CANDIDATE)
        rows["is_signed"] = True
        return rows

    def signature_rows(self):
        return self._signatures


def near_ones(folder, signatures, threshold, cuts=()):
    parts = [FakePart(some) for some in np.split(signatures, sorted(cuts))]
    return np.flatnonzero(duplicates.find_droppers(parts, comparing(near=threshold), folder)).tolist()


def clustered_signatures(count, seed, share=0.05):
    draws = np.random.default_rng(seed)
    centers = draws.integers(0, 256, (max(1, count // 4), 128), dtype=np.uint8)
    noise = draws.integers(0, 256, (count, 128), dtype=np.uint8)
    return np.where(draws.random((count, 128)) < share, noise, centers[draws.integers(0, len(centers), count)])


@given(texts=TEXTS, cuts=st.sets(st.integers(0, 30), max_size=4))
@settings(deadline=None, max_examples=50)
def test_the_first_of_the_copies_stays_however_the_inputs_are_cut(tmp_path_factory, texts, cuts):
    folder, seen, expected = tmp_path_factory.mktemp("exact"), set(), []
    for text in texts:
        expected.append("exact duplicates" if tuple(text.split()) in seen else None)
        seen.add(tuple(text.split()))
    cuts = [cut for cut in cuts if cut <= len(texts)]
    assert droppers_of(folder, texts, comparing(exact=True), cuts) == expected


def test_a_copy_counts_as_such_even_if_a_later_filter_dropped_it_in_its_slice(tmp_path):
    filters = comparing(exact=True, after=[Length(min_words=2)])
    found = droppers_of(tmp_path, ["one", "two words", "one", "one", "two  words"], filters, cuts=[2, 3])
    assert found == ["too short", None, *["exact duplicates"] * 3]


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("file_bytes", [64 << 20, 1 << 12])
def test_similar_ones_are_those_of_a_sequential_filter(tmp_path, monkeypatch, threshold, file_bytes):
    monkeypatch.setattr(duplicates, "FILE_BYTES", file_bytes)
    monkeypatch.setattr(duplicates, "FILE_BYTES", file_bytes)
    signatures = clustered_signatures(600, 7)
    if threshold == 1.0:
        signatures[300:] = signatures[:300]
    expected = similar_ones(signatures, threshold)
    assert 100 < len(expected) < 500
    assert near_ones(tmp_path, signatures, threshold, cuts=[1, 250, 250]) == expected


@given(seed=st.integers(0, 2**20), count=st.integers(0, 80), threshold=st.sampled_from([0.4, 0.8, 0.95]))
@settings(deadline=None, max_examples=40)
def test_chains_of_similar_ones(tmp_path_factory, seed, count, threshold):
    """Each is similar to the one before it, so whether it stays depends on whether that one stayed."""
    draws = np.random.default_rng(seed)
    signatures = np.repeat(draws.integers(0, 256, (1, 128), dtype=np.uint8), count, axis=0)
    for number in range(1, count):
        signatures[number] = signatures[number - 1]
        signatures[number, draws.integers(0, 128, draws.integers(0, 20))] = draws.integers(0, 256)
    assert near_ones(tmp_path_factory.mktemp("near"), signatures, threshold) == similar_ones(signatures, threshold)


def hidden_behind_others(times):
    """A signature, newer ones that have a third of it each, so that every band leads to those first, and a copy."""
    draws = np.random.default_rng(0)
    signature = draws.integers(0, 256, 128, dtype=np.uint8)
    others = draws.integers(0, 256, (3 * times, 128), dtype=np.uint8)
    for number, other in enumerate(others):
        third = slice(number % 3 * 42, number % 3 * 42 + 42)  # seven bands of six
        other[third] = signature[third]
    return np.stack([signature, *others, signature])


def test_chains_are_followed_to_their_end_but_not_for_ever(tmp_path, monkeypatch):
    assert near_ones(tmp_path, hidden_behind_others(times=4), 0.8) == [13]
    monkeypatch.setattr(duplicates, "_LONGEST_CHAIN", 4)
    assert near_ones(tmp_path, hidden_behind_others(times=3), 0.8) == [10]
    assert near_ones(tmp_path, hidden_behind_others(times=4), 0.8) == []


def test_the_first_of_a_cluster_stays(tmp_path):
    words, others = some_words(400, 1), some_words(400, 2)
    texts = [" ".join(item) for item in (words, changed(words, 0.02, 3), others, changed(words, 0.7, 4))]
    texts += [texts[0].upper() + "!", "...", "...", "some words", "Some words."]
    near = [1, 4, 8]
    expected = ["near duplicates" if number in near else None for number in range(len(texts))]
    assert droppers_of(tmp_path, texts, comparing(near=0.8), cuts=[1, 5]) == expected


def test_the_threshold_divides(tmp_path):
    for seed in range(10):
        words = some_words(600, seed)
        alike, unlike = (" ".join(changed(words, share, 100 + seed)) for share in (0.04, 0.25))  # 0.92 and 0.6
        found = droppers_of(tmp_path / str(seed), [" ".join(words), alike, unlike], comparing(near=0.8))
        assert found == [None, "near duplicates", None]


def test_a_copy_is_compared_with_nothing(tmp_path):
    """An exact copy of a near duplicate does not take the place of what it is similar to."""
    page = " ".join(some_words(300, 1))
    texts = [page, page + " more", page + "  more", page + " other"]
    found = droppers_of(tmp_path, texts, comparing(exact=True, near=0.8), cuts=[1, 2, 3])
    assert found == [None, "near duplicates", "exact duplicates", "near duplicates"]


@pytest.mark.skipif(not WEB.exists(), reason="needs ../shared/data/text/openwebtext-1000.jsonl")
def test_edited_copies_of_web_pages_are_found(tmp_path):
    pages = [json.loads(line)["text"] for line in WEB.read_text().splitlines()[:300]]
    draws = random.Random(0)
    edited = []
    for page in pages[:100]:
        words = page.split(" ")
        for _ in range(len(words) // 200):
            words[draws.randrange(len(words))] = "edited"
        edited.append(" ".join(words).replace("the", "THE"))
    parts = parts_of(tmp_path / "slices", [*pages, *edited], comparing(near=0.8), cuts=[100, 250, 350])
    found = duplicates.find_droppers(parts, comparing(near=0.8), tmp_path)
    assert not found[:300].any() and found[300:].sum() >= 98
    signatures = np.stack([signature_of(text) for text in [*pages, *edited]])
    assert np.flatnonzero(found).tolist() == similar_ones(signatures, 0.8)
