"""Measures of a text: bigrams against a closed form, and pieces that are read across documents and stores."""

import math
from pathlib import Path

import numpy
import pytest
from tiny_text import build_tiny

from hornbook.config import load_recipe
from hornbook.corpora.store import open_store
from hornbook.measure.text_bits import _tokens, bigram_nats, text_bits
from hornbook.plan.dial import BASE
from hornbook.samples.sources import open_sources


def test_bigrams_have_the_probabilities_of_witten_and_bell() -> None:
    counted, predicted = numpy.array([0, 1, 0, 1, 0, 2]), numpy.array([0, 1, 2, 0])
    unigrams = numpy.array([3.5, 2.5, 1.5]) / 7.5
    after_0 = (2 + 2 * unigrams[1]) / (3 + 2)  # 1 follows 0 twice, of three times, and two different tokens follow
    after_1 = (0 + 1 * unigrams[2]) / (2 + 1)
    after_2 = unigrams[0]  # nothing follows 2
    expected = -sum(map(math.log, (after_0, after_1, after_2))) / 3
    assert bigram_nats(counted, predicted, 3) == pytest.approx(expected, rel=1e-12)


def test_bigrams_are_probabilities() -> None:
    counted = numpy.random.default_rng(0).integers(0, 5, 40)
    for before in range(6):
        each = [math.exp(-bigram_nats(counted, numpy.array([before, after]), 6)) for after in range(6)]
        assert sum(each) == pytest.approx(1, rel=1e-12)


def test_pieces_go_across_documents_and_stores(tmp_path: Path) -> None:
    build_tiny(tmp_path / "corpus")
    stores = [open_store(tmp_path / "corpus", split) for split in ("train", "validation")]
    documents = [store.document(number) for store in stores for number in range(store.num_documents)]
    joined = numpy.concatenate(documents)
    assert len(documents) > 3
    for place, length in ((0, len(joined)), (1, 7), (len(documents[0]) - 1, 2), (stores[0].num_tokens - 3, 6)):
        assert _tokens(stores, place, length).tolist() == joined[place : place + length].tolist()
    assert _tokens(stores, len(joined) - 2, 5).tolist() == joined[-2:].tolist()


def test_a_text_of_one_sentence_is_easier_than_a_varied_one(tmp_path: Path) -> None:
    draw = numpy.random.default_rng(0)
    varied = [" ".join(draw.choice(["the", "dog", "ran", "and", "cat", "sat", "on", "mat"], 2000)) for _ in range(8)]
    found = {}
    for name, texts in (("same", ["the dog ran and the cat sat on the mat " * 250] * 8), ("varied", varied)):
        for split in ("held_out", "none"):
            folder = tmp_path / name / split
            (folder / "texts").mkdir(parents=True)
            for number, text in enumerate(texts):
                (folder / "texts" / f"{number}.txt").write_text(f"{number} {text}")
            build_tiny(folder / "corpus", validation=0.25 if split == "held_out" else 0.0)
            recipe = load_recipe(BASE, ["--data.train", str(folder / "corpus")]).recipe
            found[name, split] = text_bits(open_sources(recipe))
    for split in ("held_out", "none"):
        assert found["same", split].compressed < 0.5 * found["varied", split].compressed
        assert found["same", split].bigram < 0.5 * found["varied", split].bigram
