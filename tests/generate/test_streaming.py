"""Text piece by piece: the whole is what decoding all ids at once gives, cut at the first complete stop string."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_libraries import KINDS, library, library_json
from tiny_text import tiny_tokenizer

from hornbook.generate.text import TextStream
from hornbook.text.tokenizer import Tokenizer


def pieces_of(ids, stops=(), tokenizer=None, context=()):
    stream = TextStream(tokenizer or tiny_tokenizer(), stops, context)
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
    ids = [tiny_tokenizer().vocab[symbol] for byte in text.encode() for symbol in [symbol_of(byte)]]
    pieces, _ = pieces_of(ids)
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)
    assert [piece for piece in pieces if piece] == list(text), "each is given out as soon as it is whole"


def symbol_of(byte):
    from hornbook.text.tokenizer_json import byte_symbols

    return byte_symbols()[byte]


def test_what_may_become_a_stop_string_waits():
    ids = {character: tiny_tokenizer().encode(character)[0] for character in "abc"}
    stream = TextStream(tiny_tokenizer(), ["abc"])
    assert [stream.push(ids[character]) for character in "aab"] == ["", "a", ""]
    assert [stream.push(ids[character]) for character in "bab"] == ["abb", "", ""]
    assert stream.push(ids["c"]) == ""
    assert stream.has_stopped
    assert stream.push(ids["a"]) == stream.finish() == ""


def test_what_waited_is_given_out_at_the_end():
    stream = TextStream(tiny_tokenizer(), ["abc"])
    ids = tiny_tokenizer().encode("ab")
    assert [*map(stream.push, ids), stream.finish()][-1] == "ab"
    assert not stream.has_stopped


def test_a_special_token_is_its_name():
    assert pieces_of([tiny_tokenizer().end_of_text_id])[0] == ["<|endoftext|>", ""]


@pytest.mark.parametrize(("stops", "text"), [(["abc", "b"], "xa"), (["bc", "abc"], "x"), (["d", "cd"], "xabc")])
def test_the_string_that_is_complete_first_ends_the_text_however_long_a_token_is(stops, text):
    """So that the same characters end alike, whether they came at once or one by one."""
    tokenizer = Tokenizer.train(["xabc " * 9], 262)
    whole, single = tokenizer.encode("xabc"), [tokenizer.vocab[letter] for letter in "xabc"]
    assert len(whole) == 1
    for ids in (whole, single):
        pieces, _ = pieces_of(ids, stops, tokenizer)
        assert "".join(pieces) == text


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(numbers=st.lists(st.integers(0, 10_000), max_size=30))
def test_the_whole_is_what_the_library_decodes_for_any_kind(kind, numbers):
    """Runs of bytes without a character in them included; after a prompt, as much as that makes the text longer."""
    tokenizer = Tokenizer.from_json(library_json(kind))
    ids = [number % tokenizer.vocab_size for number in numbers]
    pieces, _ = pieces_of(ids, tokenizer=tokenizer)
    assert "".join(pieces) == tokenizer.decode(ids) == library(kind).decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_continuation_keeps_its_blank_and_its_characters(kind):
    tokenizer = Tokenizer.from_json(library_json(kind))
    text = "story 1: the cat 😀 sat on the mat, the é"
    ids = tokenizer.encode(text)
    whole = tokenizer.decode(ids)
    for start in range(len(ids)):
        prompt = tokenizer.decode(ids[:start])
        if "\ufffd" not in prompt:
            pieces, _ = pieces_of(ids[start:], tokenizer=tokenizer, context=ids[:start])
            assert prompt + "".join(pieces) == whole
            assert not any("\ufffd" in piece for piece in pieces)
