import json

import pytest
import tokenizers
from mutations import mutated, survive
from tiny_text import SHARED, TEXTS, one_line, tiny_tokenizer

from hornbook.errors import DataError
from hornbook.text.byte_pairs import PATTERNS, byte_symbols
from hornbook.text.special_tokens import ROBERTA_TOKENS
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_kinds import parse_rules, read_rules

GPT2 = SHARED / "tokenizers" / "gpt2"
needs_files = pytest.mark.skipif(not GPT2.exists(), reason="../shared/data/tokenizers is not there")


def description():
    return json.loads(tiny_tokenizer().to_json())


def parse(value):
    return parse_rules(json.dumps(value).encode(), "t.json")


def write_vocabulary_and_merges(folder, vocabulary, merges):
    pairs = tiny_tokenizer().byte_pairs
    (folder / vocabulary).write_text(json.dumps(dict(pairs.vocab)), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in pairs.merges), ""]
    (folder / merges).write_text("\n".join(lines), encoding="utf-8")


def test_byte_symbols_are_those_of_the_library():
    symbols = byte_symbols()
    assert len(set(symbols)) == 256
    assert set(symbols) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert (symbols[ord("A")], symbols[ord(" ")], symbols[0]) == ("A", "Ġ", "Ā")


def test_json_round_trip():
    pairs = tiny_tokenizer().byte_pairs
    assert parse(description()) == pairs
    assert parse(description()).to_json() == pairs.to_json()


@pytest.mark.parametrize(
    ("vocabulary", "merges"),
    [("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"), ("gpt2-vocab.json", "gpt2-merges.txt")],
)
def test_vocabulary_and_merges(tmp_path, vocabulary, merges):
    write_vocabulary_and_merges(tmp_path, vocabulary, merges)
    assert read_rules(tmp_path) == tiny_tokenizer().byte_pairs


def test_windows_line_ends_of_merges(tmp_path):
    write_vocabulary_and_merges(tmp_path, "vocab.json", "merges.txt")
    path = tmp_path / "merges.txt"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_rules(tmp_path).merges == tiny_tokenizer().byte_pairs.merges


def test_merges_as_older_libraries_wrote_them():
    value = description()
    value["model"]["merges"] = [" ".join(pair) for pair in value["model"]["merges"]]
    del value["model"]["type"]
    assert parse(value) == tiny_tokenizer().byte_pairs


@pytest.mark.parametrize("pattern", PATTERNS)
def test_gpt2_pattern_spelled_out_is_the_same(pattern):
    value = description()
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = value["pre_tokenizer"] | {"use_regex": False}
    value["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    assert parse(value) == tiny_tokenizer().byte_pairs


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
        (change(["model", "type"], "Unigram"), "'Unigram'; expected byte-level BPE or WordPiece"),
        (change(["model", "type"], ["BPE"]), "['BPE']"),
        (change(["model", "dropout"], 0.1), "dropout 0.1"),
        (change(["model", "byte_fallback"], True), "byte_fallback True"),
        (change(["model", "continuing_subword_prefix"], "##"), "'##'"),
        (change(["normalizer"], {"type": "NFC"}), "normalizer"),
        (change(["pre_tokenizer"], {"type": "Whitespace"}), "pre-tokenizer"),
        (change(["pre_tokenizer", "add_prefix_space"], True), "pre-tokenizer"),
        (change(["pre_tokenizer"], {"type": "Sequence", "pretokenizers": [{"type": "Split"}, 1]}), "pre-tokenizer"),
        (change(["added_tokens"], "x"), "list"),
        (change(["added_tokens", 0, "id"], None), "lacks its content or id"),
        (change(["added_tokens", 0, "id"], 7), "another id"),
        (change(["added_tokens"], [{"id": 300, "content": "word", "special": False}]), "'word' is not special"),
        (change(["model", "vocab"], []), "table of tokens"),
        (change(["model", "vocab", "a"], "65"), "table of tokens"),
        (change(["model", "vocab", "a"], 66), "each once"),
        (change(["model", "vocab", "a"], None), "each once"),
        (change(["model", "vocab"], {"<|endoftext|>": 299}), "each once"),
        (change(["model", "merges"], {}), "list of merges"),
        (change(["model", "merges", 3], "one"), "merge 4 is not two tokens"),
        (change(["model", "merges", 3], [1, 2]), "merge 4 is not two tokens"),
        (change(["model", "merges", 3], ["nix", "da"]), "merge 4 ('nix', 'da') is not in the vocabulary"),
    ],
)
def test_malformed_tokenizer_json(value, part):
    with pytest.raises(DataError) as caught:
        parse(value)
    assert one_line(caught.value, "t.json", part)


def test_a_vocabulary_without_some_bytes(tmp_path):
    write_vocabulary_and_merges(tmp_path, "vocab.json", "merges.txt")
    vocab = {f"token{number}": number for number in range(300)} | {"<|endoftext|>": 300}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    with pytest.raises(DataError) as caught:
        read_rules(tmp_path)
    assert one_line(caught.value, "vocab.json", "256 of the 256 bytes have no token")


def test_a_vocabulary_without_end_of_text():
    value = description()
    value["added_tokens"] = []
    vocab = value["model"]["vocab"]
    vocab["other"] = vocab.pop("<|endoftext|>")
    with pytest.raises(DataError) as caught:
        parse(value)
    assert one_line(caught.value, "no end-of-text token", "<|endoftext|>")


def test_malformed_files(tmp_path):
    with pytest.raises(DataError, match="no tokenizer: expected"):
        read_rules(tmp_path)
    with pytest.raises(DataError, match="missing"):
        read_rules(tmp_path / "nothing.json")
    write_vocabulary_and_merges(tmp_path, "vocab.json", "merges.txt")
    (tmp_path / "merges.txt").write_bytes(b"#version: 0.2\n\xff \xff\n")
    with pytest.raises(DataError, match=r"merges\.txt: not UTF-8 at byte 14"):
        read_rules(tmp_path)
    (tmp_path / "merges.txt").write_text("a\nb c\n")
    with pytest.raises(DataError, match=r"merges\.txt, line 1 is not two tokens: 'a'"):
        read_rules(tmp_path)
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(DataError, match=r"vocab\.json: it is not valid JSON"):
        read_rules(tmp_path)


def test_a_file_that_is_too_large(tmp_path):
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(DataError, match="larger than 64"):
        read_rules(tmp_path)


def write_robertas(folder, rows):
    """The tiny vocabulary and merges, with a dictionary of fairseq that has the rows."""
    write_vocabulary_and_merges(folder, "encoder.json", "vocab.bpe")
    (folder / "dict.txt").write_text("".join(f"{row} 7\n" for row in rows))


def backwards(fillers=6):
    return [*range(299, -1, -1), *(f"madeupword{number:04}" for number in range(fillers))]


def test_robertas_dictionary(tmp_path):
    write_robertas(tmp_path, backwards())
    pairs, old = read_rules(tmp_path), tiny_tokenizer().byte_pairs
    assert all(pairs.vocab[token] == 4 + 299 - number for token, number in old.vocab.items())
    assert [pairs.vocab[token] for token in ROBERTA_TOKENS] == [0, 1, 2, 3, 304]
    assert pairs.vocab["<|endoftext|>"] == 4, "a token of the vocabulary, but none of RoBERTa's"
    assert (pairs.special, pairs.end_of_text, pairs.merges) == (ROBERTA_TOKENS, "</s>", old.merges)
    assert parse_rules(pairs.to_json().encode(), "t.json") == pairs
    write_robertas(tmp_path, [number for number in backwards() if number not in (0, 299)])
    with pytest.raises(DataError) as caught:
        read_rules(tmp_path)
    assert one_line(caught.value, "dict.txt", "a row for each of the 300 ids of GPT-2")


def test_robertas_fillers_make_a_multiple_of_eight(tmp_path):
    value = json.loads(Tokenizer.train(TEXTS, 298).to_json())
    (tmp_path / "encoder.json").write_text(json.dumps(value["model"]["vocab"]))
    (tmp_path / "vocab.bpe").write_text("\n".join(" ".join(pair) for pair in value["model"]["merges"]))
    (tmp_path / "dict.txt").write_text("".join(f"{row} 0\n" for row in [*range(298), *backwards()[300:]]))
    vocab = read_rules(tmp_path).vocab
    assert [name for name in vocab if name.startswith("madeup")] == ["madeupword0000", "madeupword0001"]
    assert vocab["<mask>"] == len(vocab) - 1 == 304


@needs_files
def test_roberta_itself(tmp_path):
    for path in (*GPT2.iterdir(), SHARED / "tokenizers" / "roberta" / "dict.txt"):
        (tmp_path / path.name).symlink_to(path)
    roberta = Tokenizer.load(tmp_path)
    names = list(roberta.rules.vocab)
    assert (roberta.vocab_size, roberta.require_masking().mask, roberta.end_of_text_id) == (50265, 50264, 2)
    assert names[50259:50262] == ["ĠstrutConnector", "<|endoftext|>", "madeupword0000"]
    assert roberta.encode("Hello world") == [31414, 232]
    assert roberta.encode_with_mask("The capital of France is <mask>.") == [133, 812, 9, 1470, 16, 50264, 4]


def test_robertas_vocabulary_and_merges(tmp_path):
    pairs = Tokenizer.train(TEXTS, 300, kind="roberta").byte_pairs
    (tmp_path / "vocab.json").write_text(json.dumps(dict(pairs.vocab)))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(pair) for pair in pairs.merges))
    assert read_rules(tmp_path) == pairs


def test_mutated_files_give_a_tokenizer_or_one_line(tmp_path):
    words = [b'"special":false', b'"id":', b"[", b"{", b"null", b'"\\ud800"', b"1e999", b"-1"]

    def use(path):
        yield Tokenizer.load(path).encode("the cat <|endoftext|> sat")

    path = tmp_path / "tokenizer.json"
    refused, accepted = survive(use, path, mutated(tiny_tokenizer().to_json().encode(), 1000, seed=1, words=words))
    assert refused > 600 and accepted > 10


def test_mutated_dictionaries_give_a_tokenizer_or_one_line(tmp_path):
    write_robertas(tmp_path, backwards())
    path = tmp_path / "dict.txt"

    def use(path):
        yield read_rules(path.parent)

    refused, accepted = survive(use, path, mutated(path.read_bytes(), 300, seed=2, words=[b"\n", b" ", b"299"]))
    assert refused > 100 and accepted > 10
