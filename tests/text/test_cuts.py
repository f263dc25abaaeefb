from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_libraries import library, library_json
from tiny_text import SHARED, TEXTS, one_line

from hornbook.text.cuts import BERT_CUT, GPT2_CUT, MAX_STRETCH_BYTES, MAX_WHOLE_BYTES, cuts
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import word_piece

ODD = "\0\t\n\v\f\r\x1c\x1f\x7f\x85\xa0\xad\u0301\u0345\u1680\u180e\u2000\u200b\u200d\u2028\u202f\u3000\ufeff\ufffd"
FRAGMENTS = [
    "  ",
    " ",
    "\n",
    "\r\n",
    "'s",
    "'ll",
    "don't",
    "[MASK]",
    "[SEP]",
    "<mask>",
    "##a",
    "1234",
    "½Ⅷ٣",
    "中。文",
    "，",
]
FRAGMENTS += [
    "e\u0301",
    ".\u0301",
    "\u0344",
    "Σας",
    "İ",
    "नमस्ते",
    "👩\u200d🚀",
    "\U0001d165\u0327",
    " a",
    "$",
    "_",
    "ﬁ",
    *ODD,
]
texts = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=8)), max_size=12).map("".join)
CHINESE = "天地玄黄，宇宙洪荒。\n日月盈昃、辰宿列张！3月4日"
JAPANESE = "「ラーメンを、食べる？」と彼は言った・・・。カ゛キ3本"
MINIFIED = "{\"a\":[-73.98,40.7],\"it's\":\"x're\",\"b1\":null,'d2':1e5};f('s','1')"
BASE64 = "aGVsbG8gd29ybGQ0MiFzZ3A+L2E5Yg=="
dense = st.lists(st.sampled_from(CHINESE + JAPANESE + MINIFIED + BASE64), max_size=40).map("".join)
KINDS = {
    "byte-bpe": Tokenizer.train([*TEXTS, "".join(FRAGMENTS)], 300),
    "wordpiece": Tokenizer.train([*TEXTS, "".join(FRAGMENTS)], 400, kind="wordpiece"),
    "wordpiece cased": Tokenizer.train([*TEXTS, "".join(FRAGMENTS)], 400, kind="wordpiece", lowercase=False),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=200, deadline=None)
@given(text=st.one_of(texts, dense), size=st.integers(1, 12))
def test_cuts_change_no_token(kind, text, size):
    tokenizer = KINDS[kind]
    pieces = list(tokenizer.stretches(text, size))
    assert "".join(pieces) == text
    whole = tokenizer._library.encode(text, add_special_tokens=False).ids
    assert [number for piece in pieces for number in tokenizer.encode(piece)] == whole


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(texts, dense), size=st.integers(1, 12))
def test_cuts_change_no_token_by_llama_3s_pattern(text, size):
    tokenizer = _llama3()
    pieces = list(tokenizer.stretches(text, size))
    assert "".join(pieces) == text
    whole = library("llama3").encode(text, add_special_tokens=False).ids
    assert [number for piece in pieces for number in tokenizer.encode(piece)] == whole


@cache
def _llama3():
    return Tokenizer.from_json(library_json("llama3"))


def test_long_texts_are_cut_where_the_pattern_is_known_and_have_a_limit_where_it_is_not():
    text = "some words of a text, " * 10_000
    assert max(map(len, _llama3().stretches(text))) < 17_000 and len(list(_llama3().stretches(text))) > 10
    for kind in ("llama2", "t5", "words"):
        tokenizer = Tokenizer.from_json(library_json(kind))
        assert list(tokenizer.stretches(text)) == [text]
        assert tokenizer.find_endless("a " * (MAX_WHOLE_BYTES // 2)) is None
        fault = tokenizer.find_endless("a " * (MAX_WHOLE_BYTES // 2) + "b")
        assert one_line(
            Exception(fault), "8,388,609 bytes which the tokenizer must encode at once", "at most 8,388,608"
        )


@pytest.mark.parametrize("place", [GPT2_CUT, BERT_CUT])
def test_cuts_have_the_size_asked_for(place):
    text = "some words of a text, " * 10_000
    lengths = [len(piece) for piece in cuts(text, place, 100)]
    assert max(lengths) < 110 and min(lengths[:-1]) >= 100
    assert list(cuts("", place, 5)) == [""]
    assert list(cuts("x" * 50, place, 5)) == ["x" * 50]


def test_letters_without_end_are_one_unknown_word_and_little_memory():
    tokenizer = KINDS["wordpiece"]
    blob = "0aF" * 20_000
    for text in (blob, f"the {blob}é{blob}s cat.", f"é{blob}", f"{blob[:50]}\u0301{blob}"):
        pieces = list(tokenizer.stretches(text))
        assert sum(map(len, pieces)) < 300
        whole = tokenizer._library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == whole and tokenizer.vocab["[UNK]"] in whole
    words = "0aF " * 20_000
    assert "".join(tokenizer.stretches(words)) == words


@pytest.mark.parametrize("chinese", [True, False])
def test_chinese_is_cut_between_characters_where_these_are_words(chinese):
    tokenizer = Tokenizer(word_piece(KINDS["wordpiece"].vocab, handle_chinese_chars=chinese))
    assert (len(list(tokenizer.stretches("中文字" * 10, 10))) == 3) is chinese


@pytest.mark.skipif(not SHARED.exists(), reason="the folder of shared data is not there")
@given(text=dense, size=st.integers(1, 12))
def test_cuts_change_no_token_of_gpt2(text, size):
    tokenizer = _gpt2()
    whole = tokenizer._library.encode(text, add_special_tokens=False).ids
    assert [number for piece in tokenizer.stretches(text, size) for number in tokenizer.encode(piece)] == whole


@cache
def _gpt2():
    return Tokenizer.load(SHARED / "tokenizers" / "gpt2")


@pytest.mark.parametrize("text", [CHINESE, JAPANESE, MINIFIED, BASE64])
def test_text_without_blanks_is_cut(text):
    text = text.replace("\n", "") * 10_000
    assert max(map(len, KINDS["byte-bpe"].stretches(text))) < 16_384 + 40
    assert KINDS["byte-bpe"].find_endless(text * 20) is None


@pytest.mark.parametrize("letter", ["a", "é", "漢", "😀"])
def test_what_has_no_place_to_cut_is_found(letter):
    tokenizer, most = KINDS["byte-bpe"], MAX_STRETCH_BYTES // len(letter.encode())
    for text, is_endless in (
        (letter * most, False),
        (letter * (most + 1), True),
        (f"{letter * (most - 9)} " * 2, False),
    ):
        fault = tokenizer.find_endless(text)
        assert (fault is not None) is is_endless, fault
    assert fault is None and "`on_error='skip'`" in str(tokenizer.find_endless(f"x {letter * (most + 9)} x"))
    assert KINDS["wordpiece"].find_endless("a" * (MAX_STRETCH_BYTES + 1)) is None


def test_a_call_of_the_library_gets_few_bytes(monkeypatch):
    tokenizer = Tokenizer(KINDS["byte-bpe"].settings)
    calls, run = [], tokenizer._run

    def count(encode, texts):
        calls.append(sum(map(len, texts)))
        return run(encode, texts)

    monkeypatch.setattr(tokenizer, "_run", count)
    tokenizer.encode(CHINESE * 40_000)
    assert sum(calls) == len(CHINESE) * 40_000 and max(calls) < (1 << 19) + (1 << 15)
