"""WordPiece as transformers' BertTokenizer has it, on Google's vocabularies and on a small one of our own."""

import random
from functools import cache

import pytest
from tiny_text import SHARED, TEXTS
from transformers import BertTokenizer

from hornbook.text.tokenizer import Tokenizer

LOWERCASE = {"bert-base-uncased": True, "bert-base-cased": False}
needs_vocabularies = pytest.mark.skipif(
    not (SHARED / "tokenizers" / "bert-base-cased").exists(), reason="../shared/data/tokenizers is not there"
)
POINTS = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]


@cache
def pair(name: str) -> tuple[Tokenizer, BertTokenizer]:
    """Our tokenizer of a vocabulary, and theirs."""
    ours = Tokenizer.load(SHARED / "tokenizers" / name)
    return ours, BertTokenizer(vocab=dict(ours.vocab), do_lower_case=LOWERCASE[name])


def theirs_of(tokenizer: BertTokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def in_contexts(points: list[int]) -> str:
    return "".join(f" a{c}b 1{c}2 !{c}?{c}{c} {c}\n{c}'s" for c in map(chr, points))


@needs_vocabularies
@pytest.mark.parametrize("name", LOWERCASE)
def test_code_points_of_all_kinds(name):
    ours, theirs = pair(name)
    points = [*range(0x600), *random.Random(0).sample(POINTS[0x600:], 6000)]
    for start in range(0, len(points), 500):
        text = in_contexts(points[start : start + 500])
        assert ours.encode(text) == theirs_of(theirs, text)


@needs_vocabularies
@pytest.mark.slow
@pytest.mark.parametrize("name", LOWERCASE)
def test_every_code_point(name):
    ours, theirs = pair(name)
    for start in range(0, len(POINTS), 2000):
        text = in_contexts(POINTS[start : start + 2000])
        assert ours.encode(text) == theirs_of(theirs, text), f"from U+{POINTS[start]:04X}"


@needs_vocabularies
@pytest.mark.parametrize("name", LOWERCASE)
@pytest.mark.parametrize("file", ["text/books/moby_dick.txt", "wikitext/wikitext-2-raw/wiki.test.raw"])
def test_real_texts(name, file):
    ours, theirs = pair(name)
    text = (SHARED / file).read_bytes().decode()[:400_000]
    assert ours.encode(text) == theirs_of(theirs, text)


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_small_vocabulary(lowercase):
    ours = Tokenizer.train(TEXTS, 100, kind="wordpiece", lowercase=lowercase)
    theirs = BertTokenizer(vocab=dict(ours.vocab), do_lower_case=lowercase)
    points = [*range(0x300), *random.Random(1).sample(POINTS, 1000)]
    for text in (*TEXTS, in_contexts(points), "[CLS] the [MASK] cat" + "s" * 200):
        assert ours.encode(text) == theirs_of(theirs, text)
