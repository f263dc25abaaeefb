import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_formats import documents, lists
from tiny_text import tiny_tokenizer

from hornbook.errors import DataError, UserError
from hornbook.interop.convert.token_documents import (
    Counts,
    as_tokens,
    crop,
    cut_stream,
    split_at_end_of_text,
    with_end_of_text,
    with_tokenizer,
)
from hornbook.text.tokenizer import Tokenizer

LISTS = [[5, 6, 7, 0], [8, 9, 0], [], [1, 2, 3, 4, 0]]
TOKENS = st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=8)


def test_end_of_text():
    plain = with_end_of_text(documents(LISTS, end_of_text_id=0), "inserted")
    assert lists(plain) == [[5, 6, 7], [8, 9], [], [1, 2, 3, 4]] and plain.end_of_text == "inserted"
    assert lists(with_end_of_text(plain, "stored")) == [[5, 6, 7, 0], [8, 9, 0], [0], [1, 2, 3, 4, 0]]
    assert lists(with_end_of_text(documents([[0, 0]], end_of_text_id=0), "inserted")) == [[0]]
    assert lists(with_end_of_text(documents([[1, 0]], end_of_text_id=0), "stored")) == [[1, 0]]


def test_splitting_a_stream():
    pieces = [[5, 6], [7, 0, 8], [], [9, 0, 1, 2], [3]]
    assert lists(split_at_end_of_text(documents(pieces, end_of_text_id=0))) == [[5, 6, 7, 0], [8, 9, 0], [1, 2, 3]]
    assert [document.offset for document in split_at_end_of_text(documents(pieces, end_of_text_id=0))] == [0, 1, 3]


@settings(max_examples=100, deadline=None)
@given(TOKENS, st.integers(1, 5), st.integers(1, 8))
def test_cutting_by_another_way(some, length, stride):
    flat = [token for tokens in some for token in tokens]
    owners = [number for number, tokens in enumerate(some) for _ in tokens]
    starts = range(0, len(flat) - length + 1, stride)
    left_out = Counts()
    cut = cut_stream(documents(some), length, stride, left_out)
    for _ in range(2):  # what is counted begins anew
        assert lists(cut) == [flat[start : start + length] for start in starts]
        assert [document.offset for document in cut] == [owners[start] for start in starts]
        covered = {place for start in starts for place in range(start, start + length)}
        assert left_out.tokens == len(flat) - len(covered)


@settings(max_examples=50, deadline=None)
@given(TOKENS)
def test_splitting_gives_back_what_was_cut(some):
    some = [[token + 1 for token in tokens] + [0] for tokens in some]
    flat = documents([[token for tokens in some for token in tokens]], end_of_text_id=0)
    pieces = documents(lists(cut_stream(flat, 1, 1, Counts())), end_of_text_id=0)
    assert lists(split_at_end_of_text(pieces)) == some


def test_cropping():
    left_out = Counts()
    assert lists(crop(documents(LISTS), 4, left_out)) == [[5, 6, 7, 0], [1, 2, 3, 4]]
    assert (left_out.items, left_out.tokens) == (2, 4)


def test_a_tokenizer_for_tokens_without_one():
    tokenizer = tiny_tokenizer()
    some = with_tokenizer(documents([[1, 299]]), tokenizer)
    assert (some.vocab_size, some.end_of_text_id, lists(some)) == (300, 299, [[1, 299]])
    with pytest.raises(DataError, match="memory: the document at byte 1 has token 300, but the tokenizer has 0 to 299"):
        lists(with_tokenizer(documents([[1], [300]]), tokenizer))
    other = Tokenizer.train(["other words, other merges"], 260)
    with pytest.raises(UserError, match="a tokenizer other than that of"):
        with_tokenizer(some, other)


def test_token_ids():
    for dtype in ("u1", "i1", "<u2", "<i4", ">i4", "<u8", "<i8"):
        assert as_tokens(np.array([0, 100], dtype=dtype), "here").tolist() == [0, 100]
    assert as_tokens(np.array([], dtype=np.int64), "here").tolist() == []
    for value, dtype in ((-1, "i1"), (2**31, "<u4"), (2**63, "<u8"), (-(2**63), "<i8")):
        with pytest.raises(DataError, match=rf"here has {value}, which is not a token id"):
            as_tokens(np.array([5, value], dtype=dtype), "here")
