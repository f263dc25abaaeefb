import sys

import numpy as np
import pytest
from cases import mostly_slow
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_text import SHARED, TEXTS

from hornbook.errors import HornbookError, UserError
from hornbook.text import accelerate
from hornbook.text.accelerate import accelerated
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import byte_bpe

pytest.importorskip("tiktoken")

ODD = (" " * 70_000 + "x", "a" * 70_000, "\n" * 300, "ab " * 30_000, "", " ", "\r\n", "<|endoftext|>", "1½Ⅷ٣")
WORDS = st.sampled_from(("the", " cat", "  ", "\n", "'ll", "don't", "12", "é", "😀", "\u3000", "\u00a0", "٣", "漢"))
ANY_TEXT = st.one_of(st.text(), st.lists(WORDS).map("".join), st.text(alphabet=" \n\t\r a1.'"))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def same_classes():
    """The comparison of all characters, made once."""
    assert accelerate._same_classes()


@pytest.fixture(scope="module")
def trained(same_classes):
    return Tokenizer.train([*TEXTS, "the cat don't see 12 words " * 9], 500)


def assert_same(encode, tokenizer, texts):
    found, expected = encode(texts), tokenizer.encode_batch(texts)
    assert len(found) == len(expected)
    for ids, wanted in zip(found, expected, strict=True):
        assert ids.dtype == wanted.dtype and np.array_equal(ids, wanted)


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(ANY_TEXT, max_size=6))
def test_the_ids_are_the_same(trained, texts):
    encode = accelerated(trained, 1)
    encode._check = lambda job, found: None  # what a build compares is not compared twice
    assert_same(encode, trained, texts)


@pytest.mark.parametrize("threads", [1, 3])
def test_unusual_and_many_texts(trained, threads, monkeypatch):
    monkeypatch.setattr(accelerate, "_JOB_CHARACTERS", 1000)
    encode = accelerated(trained, threads)
    assert_same(encode, trained, [*ODD, *TEXTS, *ODD])
    assert_same(encode, trained, [accelerate._BOUNDARY, f"a{accelerate._BOUNDARY}", "b"])


@pytest.mark.skipif(not SHARED.exists(), reason="the folder of shared data is not there")
@pytest.mark.parametrize("name", mostly_slow(["gpt2", "roberta"]))
def test_published_tokenizers(same_classes, name):
    folder = SHARED / "tokenizers" / "gpt2"
    tokenizer = Tokenizer.load(folder) if name == "gpt2" else _roberta(folder)
    encode = accelerated(tokenizer, 1)
    text = (SHARED / "text" / "tinyshakespeare.txt").read_text()[:200_000]
    assert_same(encode, tokenizer, [*ODD, text, *text.split("\n\n")])


def _roberta(folder):
    """GPT-2's merges with the ids in another order, as RoBERTa has them."""
    gpt2 = Tokenizer.load(folder)
    vocab = {name: number for number, name in enumerate(sorted(gpt2.vocab))}
    return Tokenizer(byte_bpe(vocab, gpt2.settings["model"]["merges"]))


def test_lone_surrogates(trained):
    with pytest.raises(UserError, match="lone surrogates"):
        accelerated(trained, 1)(["fine", "\ud800"])


def test_merges_that_ranks_cannot_express(same_classes):
    """By pairs "abc" is a, bc, since (a, bc) is no merge; by ranks it would be one token."""
    bytes_only = {symbol: number for number, symbol in enumerate(accelerate.byte_symbols())}
    merges = (("b", "c"), ("a", "b"), ("ab", "c"))
    vocab = bytes_only | {"bc": 256, "ab": 257, "abc": 258, "<|endoftext|>": 259}
    assert not accelerate._merges_by_rank(Tokenizer(byte_bpe(vocab, merges)))
    assert accelerate._merges_by_rank(Tokenizer(byte_bpe(vocab, merges[:2])))
    twice = (("b", "c"), ("a", "bc"), ("a", "b"), ("ab", "c"))
    assert not accelerate._merges_by_rank(Tokenizer(byte_bpe(vocab, twice)))


@pytest.mark.parametrize(
    ("of_class", "other"),
    [
        (r"\p{L}++", r"[\p{L}--Ω]++"),
        (r"\p{N}++", r"[\p{N}--٣]++"),
        (r"[^\s\p{L}\p{N}]++", r"[^\s\p{L}\p{N}\u{300}]++"),
        (r"[^\s\p{L}\p{N}]++", r"[^\s\p{L}\p{N}\u{7f}]++"),
        (r"\p{L}++", r"[\p{L}\u{7f}]++"),
        (r"\p{L}++", r"[\p{L}--Q]++"),
        (r"[^\s\p{L}\p{N}]++", r"(?:[^\s\p{L}\p{N}]|\u{3000})++"),
    ],
)
def test_a_difference_in_classes_is_seen(monkeypatch, of_class, other):
    monkeypatch.setattr(accelerate, "_PROBED", (range(0x700), range(0x2FF0, 0x3010)))
    compare = accelerate._same_classes.__wrapped__
    assert compare()
    changed = accelerate._PATTERN.replace(of_class, other)
    assert changed != accelerate._PATTERN
    monkeypatch.setattr(accelerate, "_PATTERN", changed)
    assert not compare()


def test_the_libraries_are_compared_once_for_their_files(trained, monkeypatch):
    compared, installed = [], accelerate.find_spec
    monkeypatch.setattr(accelerate, "_same_classes", lambda: compared.append("classes") or True)
    monkeypatch.setattr(accelerate, "_merges_by_rank", lambda tokenizer: compared.append(tokenizer.vocab_size) or False)
    other = Tokenizer.train([*TEXTS, "more words"], 400)
    assert [accelerated(tokenizer, 1) for tokenizer in (trained, trained, other)] == [None] * 3
    assert compared == ["classes", trained.vocab_size, other.vocab_size]
    monkeypatch.setattr(accelerate, "find_spec", lambda name: installed(name.partition(".")[0]))  # other files
    assert accelerated(trained, 1) is None
    assert compared[3:] == ["classes", trained.vocab_size]


def test_one_stretch_in_128_is_compared(trained, monkeypatch):
    encode, compared = accelerated(trained, 1), []
    monkeypatch.setattr(encode, "_check", lambda job, found: compared.extend(text for _, text in job))
    monkeypatch.setattr(accelerate, "_JOB_CHARACTERS", 7)
    encode([f"{number:03}" for number in range(200)])
    encode([f"{number:03}" for number in range(200, 400)])
    assert compared == ["000", "128", "256", "384"]


def test_a_difference_stops_the_build(trained):
    encode = accelerated(trained, 1)
    encode._ids = encode._ids[::-1].copy()
    with pytest.raises(HornbookError, match="tiktoken and tokenizers give different ids"):
        encode(["the cat"])


def test_what_cannot_be_accelerated(monkeypatch, trained):
    word_pieces = Tokenizer.train(TEXTS, 200, kind="wordpiece")
    assert accelerated(word_pieces, 1) is None
    accelerate._is_installed.cache_clear()
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    assert accelerated(trained, 1) is None
    accelerate._is_installed.cache_clear()
