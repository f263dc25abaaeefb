import json
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_documents import document, kept, some_words
from tiny_text import SHARED, one_line

from hornbook.errors import UserError
from hornbook.text.quality import words as module
from hornbook.text.quality.decontamination import Decontamination, NgramTable

LAMBADA = SHARED / "lambada" / "lambada_test.jsonl"
WIKITEXT = SHARED / "wikitext" / "wikitext-103" / "wiki.test.tokens"
BOOKS = SHARED / "text" / "books"
PASSAGES = st.lists(st.lists(st.sampled_from("abc"), max_size=20), min_size=1, max_size=4)


def write(path, *texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def words_of(text):
    return re.findall(r"[^\W_]+", text.lower())


def sequences(words, length):
    return {tuple(words[place : place + length]) for place in range(len(words) - length + 1)}


def reference(passages, text, num_words, min_overlap):
    """Whether a text stays, by sets of words."""
    words, shared = words_of(text), set()
    for passage in map(words_of, passages):
        length = min(num_words, len(passage))
        if length >= 8:
            shared |= sequences(passage, length) & sequences(words, length)
    return len(shared) < min_overlap


BLOCKS = st.sampled_from([0, 5, 20, 1 << 20])


@given(PASSAGES, st.lists(st.sampled_from("abc"), max_size=60), st.integers(8, 13), st.integers(1, 4), BLOCKS)
@settings(deadline=None, max_examples=200)
def test_as_brute_force(tmp_path_factory, passages, words, num_words, min_overlap, block):
    passages = [" ".join(passage) for passage in passages] + ["x y z " * 5]
    path = write(tmp_path_factory.getbasetemp() / "passages.jsonl", *passages)
    given_filter = Decontamination([path], "text", num_words, min_overlap)
    text = " ".join(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_CHARACTERS", block)
        assert given_filter.keeps(document(text)) == reference(passages, text, num_words, min_overlap)


def test_thirteen_words_are_one_too_many(tmp_path):
    words = some_words(30, 1)
    path = write(tmp_path / "a.jsonl", " ".join(words))
    texts = [" ".join(["before", *words[5 : 5 + count], "after"]) for count in (12, 13, 14)]
    assert kept(Decontamination([path]), texts) == texts[:1]
    assert kept(Decontamination([path], min_overlap=2), texts) == texts[:2]
    assert kept(Decontamination([path], num_words=12), texts) == []


def test_short_passages_count_as_a_whole(tmp_path):
    short, shorter = some_words(8, 1), some_words(7, 2)
    path = write(tmp_path / "a.jsonl", " ".join(short), " ".join(shorter))
    texts = [" ".join(["before", *words, "after"]) for words in (short, short[:7], shorter)]
    assert kept(Decontamination([path]), texts) == texts[1:]


def test_form_does_not_matter(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("He didn 't say : a well @-@ known ship of the line , sailing at noon")
    text = 'Chapter 1. "He didn\'t SAY:\r\na well-known ship _of_ the line--sailing at noon."'
    assert kept(Decontamination([str(path)]), [text]) == []


def test_several_sets_and_other_fields(tmp_path):
    first, second = (" ".join(some_words(20, seed)) for seed in (1, 2))
    (tmp_path / "b.jsonl").write_text(json.dumps({"question": second}))
    paths = [write(tmp_path / "a.jsonl", first)]
    assert kept(Decontamination(paths), [first, second]) == [second]
    assert kept(Decontamination([str(tmp_path / "b.jsonl")], "question"), [first, second]) == [first]


def test_what_is_no_evaluation_set_is_one_line(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "binary.txt").write_bytes(b"\x89PNG\0")
    (tmp_path / "fields.jsonl").write_text('{"question": "why?"}\n')
    short = write(tmp_path / "short.jsonl", "seven words are too few for us", "")
    for path, *parts in [
        (tmp_path / "missing.jsonl", "missing.jsonl", "no such file"),
        (tmp_path / "empty.jsonl", "empty.jsonl", "no passage has 8 or more words"),
        (short, "short.jsonl", "no passage has 8 or more words"),
        (tmp_path / "binary.txt", "evaluation set", "zero byte"),
        (tmp_path / "fields.jsonl", "no field 'text'", "set `decontaminate_field` to"),
    ]:
        with pytest.raises(UserError) as caught:
            Decontamination([str(path)])
        assert one_line(caught.value, *parts)


@pytest.mark.parametrize(("num_words", "min_overlap"), [(7, 1), (13, 0)])
def test_numbers_out_of_range_are_one_line(num_words, min_overlap):
    with pytest.raises(UserError) as caught:
        Decontamination(["missing"], "text", num_words, min_overlap)
    assert one_line(caught.value, "expected at least 1 sequence of at least 8 words")


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1), st.lists(st.integers(0, 2**64 - 1)), st.integers(0, 5))
def test_the_set_is_a_set(inside, others, count):
    asked = [*others, *inside[:count], inside[0] ^ 1]
    found = NgramTable(np.array(inside, dtype=np.uint64)).common(np.array(asked, dtype=np.uint64))
    assert found == [item for item in asked if item in inside]


@pytest.mark.skipif(not (LAMBADA.exists() and BOOKS.exists()), reason="needs ../shared/data: LAMBADA and books")
def test_lambada_is_not_in_the_books_until_it_is_put_there():
    """The passages come from novels that were never printed; the books here are classics."""
    passages = [json.loads(line)["text"] for line in LAMBADA.read_text().splitlines()]
    book = (BOOKS / "moby_dick.txt").read_text(encoding="utf-8-sig")
    pages = [book[start : start + 4000] for start in range(0, len(book), 4000)]
    given_filter = Decontamination([str(LAMBADA)])
    assert len(kept(given_filter, pages)) == len(pages)
    draws = random.Random(0)
    hidden = [page + draws.choice(passages).upper() + page for page in pages[:50]]
    assert kept(given_filter, hidden) == []


@pytest.mark.skipif(not WIKITEXT.exists(), reason="needs ../shared/data: WikiText-103")
def test_wikitext_is_found_in_its_plain_form():
    given_filter = Decontamination([str(WIKITEXT)])
    raw = (SHARED / "wikitext" / "wikitext-2-raw" / "wiki.test.raw").read_text()
    paragraphs = [line for line in raw.splitlines() if len(line.split()) > 60]
    plain = [line.replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" 's", "'s") for line in paragraphs]
    assert len(kept(given_filter, plain)) < 0.01 * len(plain)
