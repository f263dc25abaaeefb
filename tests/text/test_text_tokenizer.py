import json
import random

import numpy as np
import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_text import SHARED, TEXTS, one_line, tiny_tokenizer

from hornbook.errors import StorageError, UserError
from hornbook.storage.faults import count_operations, inject
from hornbook.text.special_tokens import MaskingTokens
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import PATTERNS, byte_symbols

GPT2 = SHARED / "tokenizers" / "gpt2"
needs_gpt2 = pytest.mark.skipif(not GPT2.exists(), reason="../shared/data/tokenizers/gpt2 is not there")
ODD = "\0\t\n\v\f\r\x1c\x1d\x1e\x1f\x7f\x85\xa0\xad\u1680\u180e\u2000\u200b\u200d\u2028\u2029\u202f\u205f\u2060"
FRAGMENTS = [
    "  ",
    " ",
    "\n",
    "\r\n",
    "\n\n",
    "'s",
    "'ll",
    "'S",
    "don't",
    "<|endoftext|>",
    "1234",
    "½Ⅷ٣",
    "中文",
    "Привет",
]
FRAGMENTS += ["e\u0301", "👩\u200d🚀", "🇩🇪", "नमस्ते", "\U0001f600", "\U0010ffff", " a", " 1", " !", "_", "ǅ", "ﬁ", *ODD]
texts = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=8)), max_size=12).map("".join)


@pytest.fixture(scope="module")
def gpt2():
    return Tokenizer.load(GPT2)


@pytest.fixture(scope="module")
def openai():
    """OpenAI's own code over OpenAI's own files."""
    byte_of = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    vocab = json.loads((GPT2 / "encoder.json").read_bytes())
    end = {"<|endoftext|>": vocab.pop("<|endoftext|>")}
    ranks = {bytes(byte_of[symbol] for symbol in token): rank for token, rank in vocab.items()}
    return tiktoken.Encoding("gpt2", pat_str=PATTERNS[0], mergeable_ranks=ranks, special_tokens=end)


@needs_gpt2
@settings(max_examples=400, deadline=None)
@given(text=texts)
def test_ids_are_openais_and_decode_to_the_text(gpt2, openai, text):
    ids = gpt2.encode(text)
    assert ids == openai.encode_ordinary(text)
    assert 50256 not in ids
    assert gpt2.decode(ids) == text


def in_contexts(points):
    return "".join(f" a{c}b 1{c}2 !{c}?{c}{c} {c}\n{c}'s" for c in map(chr, points))


@needs_gpt2
def test_ids_are_openais_for_code_points_of_all_kinds(gpt2, openai):
    random.seed(0)
    points = [*range(0x300), *random.sample([p for p in range(0x300, 0x110000) if not 0xD800 <= p < 0xE000], 6000)]
    for start in range(0, len(points), 500):
        text = in_contexts(points[start : start + 500])
        assert gpt2.encode(text) == openai.encode_ordinary(text)


@needs_gpt2
@pytest.mark.slow
def test_ids_are_openais_for_every_code_point(gpt2, openai):
    points = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
    for start in range(0, len(points), 2000):
        text = in_contexts(points[start : start + 2000])
        assert gpt2.encode(text) == openai.encode_ordinary(text), f"from U+{points[start]:04X}"


@needs_gpt2
@pytest.mark.parametrize("name", ["text/books/moby_dick.txt", "wikitext/wikitext-2-raw/wiki.test.raw"])
def test_ids_are_openais_for_a_book(gpt2, openai, name):
    text = (SHARED / name).read_bytes().decode()[:400_000]
    assert gpt2.encode(text) == openai.encode_ordinary(text)


@needs_gpt2
def test_lambada_has_as_many_tokens_as_it_should(gpt2):
    lines = (SHARED / "lambada/lambada_test.jsonl").read_text(encoding="utf-8").splitlines()
    lengths = [len(ids) for ids in gpt2.encode_batch([json.loads(line)["text"] for line in lines])]
    assert (len(lengths), sum(lengths), max(lengths)) == (5153, 430_230, 224)


@needs_gpt2
def test_gpt2_itself(gpt2):
    assert (gpt2.vocab_size, gpt2.end_of_text_id) == (50257, 50256)
    assert gpt2.encode("Hi there<|endoftext|>") == [17250, 612, 27, 91, 437, 1659, 5239, 91, 29]
    assert gpt2.decode([50256, 17250]) == "<|endoftext|>Hi"
    assert Tokenizer.from_json(gpt2.to_json()).digest == gpt2.digest


def test_a_batch_is_each_text_by_itself():
    tokenizer = tiny_tokenizer()
    batch = ["", *TEXTS[:3], "word " * 20_000, "", "end"]
    arrays = tokenizer.encode_batch(batch)
    assert [array.tolist() for array in arrays] == [tokenizer.encode(text) for text in batch]
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.decode(np.concatenate(arrays)) == "".join(batch)


def test_special_tokens_are_text():
    tokenizer = tiny_tokenizer()
    assert tokenizer.end_of_text_id == tokenizer.vocab_size - 1
    ids = tokenizer.encode("<|endoftext|>")
    assert tokenizer.end_of_text_id not in ids
    assert tokenizer.decode([*ids, tokenizer.end_of_text_id]) == "<|endoftext|>" * 2


def test_a_file_that_lets_text_become_end_of_text_does_not_here():
    value = json.loads(tiny_tokenizer().to_json())
    value["added_tokens"][0]["special"] = False
    tokenizer = Tokenizer.from_json(json.dumps(value))
    assert tokenizer.end_of_text_id not in tokenizer.encode("a<|endoftext|>b")


def test_text_and_ids_that_are_none():
    tokenizer = tiny_tokenizer()
    with pytest.raises(UserError) as caught:
        tokenizer.encode("half a pair: \ud83d")
    assert one_line(caught.value, "surrogates")
    for wrong in ([0, 300], [-1]):
        with pytest.raises(UserError) as caught:
            tokenizer.decode(wrong)
        assert one_line(caught.value, str(wrong[-1]), "0 to 299")
    assert tokenizer.decode([tokenizer.vocab[byte_symbols()[0xFF]]]) == "\ufffd"


def test_save_and_load(tmp_path):
    tokenizer = tiny_tokenizer()
    path = tokenizer.save(tmp_path / "new" / "folder")
    assert Tokenizer.load(path).digest == Tokenizer.load(path.parent).digest == tokenizer.digest
    assert tokenizer.save(path.parent) == path
    assert [entry.name for entry in path.parent.parent.iterdir()] == ["folder"]


def test_the_library_reads_what_is_saved(tmp_path):
    tokenizer = tiny_tokenizer()
    library = tokenizers.Tokenizer.from_file(str(tokenizer.save(tmp_path)))
    for text in TEXTS[:10]:
        assert library.encode(text).ids == tokenizer.encode(text)
    assert library.token_to_id("<|endoftext|>") == tokenizer.end_of_text_id


def test_a_save_that_fails_leaves_nothing(tmp_path):
    tokenizer = tiny_tokenizer()
    with count_operations() as operations:
        tokenizer.save(tmp_path / "whole")
    for n in range(1, len(operations) + 1):
        target = tmp_path / f"target-{n}"
        with inject("any", n, "enospc"), pytest.raises(StorageError):
            tokenizer.save(target)
        if target.exists():  # the very last step, after the rename, failed
            assert Tokenizer.load(target).digest == tokenizer.digest
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")]


def test_roles_of_special_tokens():
    tokenizer = Tokenizer.train(TEXTS, 300, kind="roberta")
    assert tokenizer.end_of_text_id == tokenizer.require_end_of_text() == 2
    assert tokenizer.special_ids == {0, 1, 2, 3, 299}
    expected = MaskingTokens(cls=0, sep=2, mask=299, pad=1, vocab_size=300, special_ids=tokenizer.special_ids)
    assert tokenizer.require_masking() == expected and tokenizer.pad_id == 1
    plain = tiny_tokenizer()
    assert plain.pad_id is None and plain.special_ids == {299}


def test_a_tokenizer_without_the_tokens_for_masking():
    with pytest.raises(UserError) as caught:
        tiny_tokenizer().require_masking()
    assert one_line(caught.value, "[CLS] or <s>", "[MASK] or <mask>", "[PAD] or <pad>")
    value = json.loads(Tokenizer.train(TEXTS, 300, kind="wordpiece").to_json())
    value["model"]["vocab"]["[HIDE]"] = value["model"]["vocab"].pop("[MASK]")
    value["added_tokens"] = []
    with pytest.raises(UserError) as caught:
        Tokenizer.from_json(json.dumps(value)).require_masking()
    assert one_line(caught.value, "no token [MASK] or <mask>, which encoders need") and "CLS" not in str(caught.value)


def test_gaps_in_a_text():
    tokenizer = Tokenizer.train(TEXTS, 300, kind="roberta")
    assert tokenizer.encode_with_mask("the cat") == tokenizer.encode("the cat")
    ids = tokenizer.encode_with_mask("the  <mask> sat<mask>")
    assert ids == [*tokenizer.encode("the"), 299, *tokenizer.encode(" sat"), 299]
    assert 299 not in tokenizer.encode("<mask>") and tokenizer.decode(tokenizer.encode("<mask>")) == "<mask>"
    with pytest.raises(UserError) as caught:
        tiny_tokenizer().encode_with_mask("the <mask>")
    assert one_line(caught.value, "no mask token ([MASK] or <mask>)")
