"""Text piece by piece: the whole is what decoding all ids at once gives, cut at the first complete stop string."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_text import SHARED, TEXTS, tiny_tokenizer

from hornbook.text.streaming import TextStream, token_bytes
from hornbook.text.tokenizer import Tokenizer


@cache
def bytes_of():
    return token_bytes(tiny_tokenizer())


def pieces_of(ids, stops=()):
    stream = TextStream(bytes_of(), stops)
    pieces = []
    for token in ids:
        pieces.append(stream.push(token))
        if stream.has_stopped:
            break
    return [*pieces, stream.finish()], stream.has_stopped


def cut_of(text, stops):
    """The text before the stop string that is complete first, character by character."""
    for end in range(len(text) + 1):
        places = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if places:
            return text[: min(places)]
    return text


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 299), max_size=40))
def test_the_whole_is_what_the_tokenizer_decodes(ids):
    """Also of bytes that are no UTF-8, which most random ids are."""
    pieces, has_stopped = pieces_of(ids)
    assert "".join(pieces) == tiny_tokenizer().decode(ids)
    assert not has_stopped


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("abé😀 ", max_size=20),
    stops=st.lists(st.text("abé😀 ", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_end_the_text_however_tokens_cut_them(text, stops):
    ids = tiny_tokenizer().encode(text)
    pieces, has_stopped = pieces_of(ids, stops)
    assert "".join(pieces) == cut_of(text, stops)
    assert has_stopped == any(stop in text for stop in stops)


@pytest.mark.parametrize("text", ["Café 😀", "é", "😀😀", "日本語"])
def test_no_piece_has_half_a_character(text):
    ids = [tiny_tokenizer().byte_pairs.vocab[symbol] for byte in text.encode() for symbol in [symbol_of(byte)]]
    pieces, _ = pieces_of(ids)
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)
    assert [piece for piece in pieces if piece] == list(text), "each is given out as soon as it is whole"


def symbol_of(byte):
    from hornbook.text.byte_pairs import byte_symbols

    return byte_symbols()[byte]


def test_what_may_become_a_stop_string_waits():
    ids = {character: tiny_tokenizer().encode(character)[0] for character in "abc"}
    stream = TextStream(bytes_of(), ["abc"])
    assert [stream.push(ids[character]) for character in "aab"] == ["", "a", ""]
    assert [stream.push(ids[character]) for character in "bab"] == ["abb", "", ""]
    assert stream.push(ids["c"]) == ""
    assert stream.has_stopped
    assert stream.push(ids["a"]) == stream.finish() == ""


def test_what_waited_is_given_out_at_the_end():
    stream = TextStream(bytes_of(), ["abc"])
    ids = tiny_tokenizer().encode("ab")
    assert [*map(stream.push, ids), stream.finish()][-1] == "ab"
    assert not stream.has_stopped


def test_a_special_token_is_its_name():
    tokenizer = tiny_tokenizer()
    assert bytes_of()[tokenizer.end_of_text_id] == b"<|endoftext|>"
    assert len(bytes_of()) == tokenizer.vocab_size


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not there")
def test_gpt2s_own_tokens():
    tokenizer = Tokenizer.load(next(path for path in (SHARED / "tokenizers").iterdir() if "gpt2" in path.name))
    table = token_bytes(tokenizer)
    ids = [number for text in TEXTS for number in tokenizer.encode(text)]
    assert b"".join(table[number] for number in ids).decode() == "".join(TEXTS)
    assert tokenizer.decode(list(range(0, tokenizer.vocab_size, 7))) == b"".join(table[::7]).decode("utf-8", "replace")


@pytest.mark.parametrize(("stops", "text"), [(["abc", "b"], "xa"), (["bc", "abc"], "x"), (["d", "cd"], "xabc")])
def test_the_string_that_is_complete_first_ends_the_text_however_long_a_token_is(stops, text):
    """So that the same characters end alike, whether they came at once or one by one."""
    for table in ([b"xabc"], [b"x", b"a", b"b", b"c"]):
        stream = TextStream(table, stops)
        assert "".join([*(stream.push(token) for token in range(len(table))), stream.finish()]) == text
