import json

import pytest
import tokenizers
from cases import mostly_slow
from damage import mutated, survive
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_libraries import KINDS, library, library_json
from tiny_text import SHARED, one_line, tiny_tokenizer

from hornbook.cli.main import main
from hornbook.errors import DataError, UserError
from hornbook.text import tokenizer_json
from hornbook.text.special_tokens import BERT_TOKENS
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import PATTERNS, byte_symbols, word_piece
from hornbook.text.tokenizer_json import parse as parse_json

DIGESTS = {
    "gpt2": "0053e043174aa0269cc5aa894192b59da7bb9e5b3d8e9ed654696af7fb9b67b4",
    "bert-base-uncased": "838886a7ee552967d78f9cabf6035cd5625eac1d45c2ae4bc210ebd3a363e4db",
    "bert-base-cased": "cc58a34f43dd9233d8fd3d6be4199655c2140a4a917d948bbc26674a6bbfc280",
    "roberta": "7ba3633cd03a5b856f42e21728d7fb7f233c38c7f5e337991f365b6b61978ad6",
}


def description():
    return json.loads(tiny_tokenizer().to_json())


def parse(value):
    return Tokenizer(parse_json(json.dumps(value).encode(), "t.json"), "t.json")


def test_byte_symbols_are_those_of_the_library():
    symbols = byte_symbols()
    assert len(set(symbols)) == 256
    assert set(symbols) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert (symbols[ord("A")], symbols[ord(" ")], symbols[0]) == ("A", "Ġ", "Ā")


def test_json_round_trip():
    assert parse(description()).settings == tiny_tokenizer().settings
    assert parse(description()).to_json() == tiny_tokenizer().to_json()


WORD_PIECE = word_piece({name: number for number, name in enumerate([*BERT_TOKENS, "a", "##b"])})


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        (tiny_tokenizer().settings, "byte-bpe"),
        (tiny_tokenizer().settings | {"truncation": {"max_length": 5}}, "byte-bpe"),
        (WORD_PIECE, "wordpiece"),
        *((json.loads(library_json(kind)), None) for kind in KINDS),
    ],
)
def test_a_tokenizer_is_brought_into_its_form_once(settings, form, monkeypatch):
    """And what is known from reading it is what its JSON says."""
    known, calls = tokenizer_json._known, []
    monkeypatch.setattr(tokenizer_json, "_known", lambda settings: calls.append(1) or known(settings))
    read = Tokenizer(parse_json(json.dumps(settings).encode(), "t.json"))
    assert len(calls) == (1 if form else 2)
    assert read.form == tokenizer_json.form_of({**read.settings}) == form


def test_merges_as_older_libraries_wrote_them():
    value = description()
    value["model"]["merges"] = [" ".join(pair) for pair in value["model"]["merges"]]
    del value["model"]["type"]
    assert parse(value).digest == tiny_tokenizer().digest


@pytest.mark.parametrize("pattern", PATTERNS)
def test_gpt2_pattern_spelled_out_is_the_same(pattern):
    value = description()
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = value["pre_tokenizer"] | {"use_regex": False}
    value["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    assert parse(value).digest == tiny_tokenizer().digest


def test_other_special_tokens_are_kept():
    value = description()
    size = len(value["model"]["vocab"])
    value["added_tokens"].append({"id": size, "content": "<|pad|>", "special": True})
    pairs = parse(value)
    assert pairs.special == ("<|endoftext|>", "<|pad|>")
    assert pairs.vocab["<|pad|>"] == size


def change(path, new):
    """A description in which one entry has another value, or none."""
    value = description()
    *parents, last = path
    place = value
    for name in parents:
        place = place[name]
    if new is None:
        del place[last]
    else:
        place[last] = new
    return value


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ([], "it has no model"),
        (change(["model"], None), "it has no model"),
        (change(["model", "type"], "Trigram"), "cannot run it"),
        (change(["model", "type"], ["BPE"]), "cannot run it"),
        (change(["model", "dropout"], 0.1), "dropout 0.1"),
        (change(["pre_tokenizer", "type"], "Whitespaces"), "cannot run it"),
        (change(["added_tokens"], "x"), "cannot run it"),
        (change(["added_tokens", 0, "id"], None), "cannot run it"),
        (change(["model", "vocab"], []), "cannot run it"),
        (change(["model", "vocab", "a"], "65"), "cannot run it"),
        (change(["model", "vocab", "a"], 1 << 20), "the largest id is 1048576; expected 0 to 1048575"),
        (change(["model", "merges", 3], "one"), "cannot run it"),
        (change(["model", "merges", 3], [1, 2]), "cannot run it"),
        (change(["model", "merges", 3], ["nix", "da"]), "`nix` out of vocabulary"),
        (change(["model", "vocab", "\ud800"], 300), "cannot run it"),
        (change(["normalizer"], {"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "cannot run it"),
    ],
)
def test_malformed_tokenizer_json(value, part):
    with pytest.raises(DataError) as caught:
        parse(value)
    assert one_line(caught.value, "t.json", part)


def test_mutated_files_give_a_tokenizer_or_one_line(tmp_path):
    words = [b'"special":false', b'"id":', b"[", b"{", b"null", b'"\\ud800"', b"1e999", b"-1"]

    def use(path):
        yield Tokenizer.load(path).encode("the cat <|endoftext|> sat")

    path = tmp_path / "tokenizer.json"
    refused, accepted = survive(use, path, mutated(tiny_tokenizer().to_json().encode(), 1000, seed=1, words=words))
    assert refused > 600 and accepted > 10


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(text=st.one_of(st.text(max_size=40), st.text("the cat,\n 12é😀'S</>|[]", max_size=60)))
def test_ids_are_those_of_the_library_for_any_kind(kind, text):
    tokenizer = Tokenizer.from_json(library_json(kind))
    expected = library(kind).encode(text, add_special_tokens=False)
    assert tokenizer.encode(text) == expected.ids
    assert tokenizer.decode(expected.ids) == library(kind).decode(expected.ids, skip_special_tokens=False)


def test_special_tokens_are_found_in_the_file():
    ends = {kind: Tokenizer.from_json(library_json(kind)).end_of_text for kind in KINDS}
    assert ends == {"llama3": "<|end_of_text|>", "llama2": "</s>", "t5": "</s>", "words": "[EOS]"}
    value = json.loads(library_json("t5"))
    value["post_processor"]["single"][1]["SpecialToken"]["id"] = "<mask>"
    assert parse(value).end_of_text == "<mask>", "what is put behind a text ends it"
    framed = json.loads(library_json("words"))
    framed["post_processor"] = {"type": "BertProcessing", "sep": ["[EOS]", 1], "cls": ["[UNK]", 0]}
    assert (parse(framed).name_of("cls"), parse(framed).name_of("sep")) == ("[UNK]", "[EOS]")


def test_a_tokenizer_with_no_end_of_text_or_with_several():
    value = json.loads(library_json("words"))
    value["added_tokens"] = [token for token in value["added_tokens"] if token["content"] != "[EOS]"]
    assert parse(value).end_of_text is None
    with pytest.raises(UserError, match="no end-of-text token"):
        parse(value).require_end_of_text()
    value = json.loads(library_json("llama3"))
    value["added_tokens"][2]["content"] = "<|endoftext|>"
    with pytest.raises(DataError) as caught:
        parse(value)
    assert one_line(
        caught.value, "t.json: the tokens <|endoftext|>, <|end_of_text|> could each be the end-of-text token; put"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_is_kept_as_it_is_without_a_callers_settings(kind):
    tokenizer, value = Tokenizer.from_json(library_json(kind)), json.loads(library_json(kind))
    value["truncation"] = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    assert parse(value).digest == tokenizer.digest == Tokenizer.from_json(tokenizer.to_json()).digest
    assert len(parse(value).encode("mat 12, on 12: story")) > 2 and tokenizer.form is None


def test_a_panic_of_the_library_is_one_line(tmp_path, capfd):
    """Rust writes a backtrace of its own, and its panic is no ``Exception``."""
    value = change(["normalizer"], {"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(value))
    assert main(["tokenizer", "encode", "--tokenizer", str(path)]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and "cannot run it (Precompiled" in error


@pytest.mark.skipif(not SHARED.exists(), reason="the folder of shared data is not there")
@pytest.mark.parametrize(("name", "digest"), mostly_slow(DIGESTS.items(), 2))
def test_stores_know_published_tokenizers_by_these_digests(tmp_path, name, digest):
    """What is written into a store must never change, or the store would not match its tokenizer any more."""
    folder = SHARED / "tokenizers" / name
    if name == "roberta":
        for path in (*(SHARED / "tokenizers" / "gpt2").iterdir(), folder / "dict.txt"):
            (tmp_path / path.name).symlink_to(path)
        folder = tmp_path
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.digest == Tokenizer.from_json(tokenizer.to_json()).digest == digest
