import json

import pytest
from damage import mutated, survive
from tiny_text import SHARED, TEXTS, one_line, tiny_tokenizer

from hornbook.errors import DataError, UserError
from hornbook.text.special_tokens import BERT_TOKENS, ROBERTA_TOKENS
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import parse, read_settings

GPT2, BERT = SHARED / "tokenizers" / "gpt2", SHARED / "tokenizers" / "bert-base-uncased"
needs_files = pytest.mark.skipif(not GPT2.exists(), reason="../shared/data/tokenizers is not there")
TINY = Tokenizer.train(TEXTS, 100, kind="wordpiece")


@pytest.fixture
def folder(tmp_path):
    """A folder with every file that may hold a tokenizer, each with another vocabulary."""
    pairs = tiny_tokenizer()
    vocab = dict(pairs.vocab)
    (tmp_path / "tokenizer.json").write_text(pairs.to_json())
    (tmp_path / "dict.txt").write_text("".join(f"{number} 1\n" for number in range(300)))
    (tmp_path / "encoder.json").write_text(json.dumps(vocab))
    (tmp_path / "vocab.json").write_text(json.dumps({**vocab, "more": 300}))
    (tmp_path / "vocab.txt").write_text("\n".join(BERT_TOKENS))
    for name in ("vocab.bpe", "merges.txt"):
        (tmp_path / name).write_text("\n".join(" ".join(pair) for pair in pairs.settings["model"]["merges"]))
    return tmp_path


def test_the_first_file_in_the_list_counts(folder):
    found = []
    for name in ("tokenizer.json", "dict.txt", "encoder.json", "merges.txt"):
        found.append(Tokenizer.load(folder).vocab_size)
        (folder / name).unlink()
    assert found == [300, 305, 300, 301]
    assert Tokenizer.load(folder).vocab_size == 5
    (folder / "vocab.txt").unlink()
    with pytest.raises(DataError) as caught:
        read_settings(folder)
    assert one_line(caught.value, "has no tokenizer; expected tokenizer.json", "vocab.txt")


def test_files_by_themselves(folder):
    assert Tokenizer.load(folder / "tokenizer.json").vocab_size == 300
    assert Tokenizer.load(folder / "vocab.txt").vocab_size == 5
    with pytest.raises(DataError) as caught:
        read_settings(folder / "vocab.json")
    assert one_line(caught.value, "it has no model; for vocab.json and merges.txt, name their folder")
    with pytest.raises(UserError, match=r"no tokenizer at .*vocab\.txt"):
        read_settings(folder / "nothing" / "vocab.txt")


def write_vocabulary_and_merges(folder, vocabulary, merges):
    pairs = tiny_tokenizer()
    (folder / vocabulary).write_text(json.dumps(dict(pairs.vocab)), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in pairs.settings["model"]["merges"]), ""]
    (folder / merges).write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize(
    ("vocabulary", "merges"),
    [("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"), ("gpt2-vocab.json", "gpt2-merges.txt")],
)
def test_vocabulary_and_merges(tmp_path, vocabulary, merges):
    write_vocabulary_and_merges(tmp_path, vocabulary, merges)
    assert read_settings(tmp_path) == tiny_tokenizer().settings


def test_windows_line_ends_of_merges(tmp_path):
    write_vocabulary_and_merges(tmp_path, "vocab.json", "merges.txt")
    path = tmp_path / "merges.txt"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_settings(tmp_path)["model"]["merges"] == tiny_tokenizer().settings["model"]["merges"]


def test_malformed_files(tmp_path):
    with pytest.raises(DataError, match="no tokenizer; expected"):
        read_settings(tmp_path)
    with pytest.raises(UserError, match=r"no tokenizer at .*nothing\.json"):
        read_settings(tmp_path / "nothing.json")
    write_vocabulary_and_merges(tmp_path, "vocab.json", "merges.txt")
    (tmp_path / "merges.txt").write_bytes(b"#version: 0.2\n\xff \xff\n")
    with pytest.raises(DataError, match=r"merges\.txt: not UTF-8 at byte 14"):
        read_settings(tmp_path)
    (tmp_path / "merges.txt").write_text("a\nb c\n")
    with pytest.raises(DataError, match=r"merges\.txt, line 1: expected two tokens, found 'a'"):
        read_settings(tmp_path)
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(DataError, match=r"vocab\.json: it is not valid JSON"):
        read_settings(tmp_path)


def test_a_file_that_is_too_large(tmp_path):
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(DataError, match="larger than 64"):
        read_settings(tmp_path)


def write_robertas(folder, rows):
    """The tiny vocabulary and merges, with a dictionary of fairseq that has the rows."""
    write_vocabulary_and_merges(folder, "encoder.json", "vocab.bpe")
    (folder / "dict.txt").write_text("".join(f"{row} 7\n" for row in rows))


def backwards(fillers=6):
    return [*range(299, -1, -1), *(f"madeupword{number:04}" for number in range(fillers))]


def test_robertas_dictionary(tmp_path):
    write_robertas(tmp_path, backwards())
    pairs, old = Tokenizer.load(tmp_path), tiny_tokenizer()
    assert all(pairs.vocab[token] == 4 + 299 - number for token, number in old.vocab.items())
    assert [pairs.vocab[token] for token in ROBERTA_TOKENS] == [0, 1, 2, 3, 304]
    assert pairs.vocab["<|endoftext|>"] == 4, "a token of the vocabulary, but none of RoBERTa's"
    assert (pairs.special, pairs.end_of_text) == (ROBERTA_TOKENS, "</s>")
    assert pairs.settings["model"]["merges"] == old.settings["model"]["merges"]
    assert parse(pairs.to_json().encode(), "t.json") == pairs.settings
    write_robertas(tmp_path, [number for number in backwards() if number not in (0, 299)])
    with pytest.raises(DataError) as caught:
        read_settings(tmp_path)
    assert one_line(caught.value, "dict.txt", "a row for each of GPT-2's 300 ids")


def test_robertas_fillers_make_a_multiple_of_eight(tmp_path):
    value = json.loads(Tokenizer.train(TEXTS, 298).to_json())
    (tmp_path / "encoder.json").write_text(json.dumps(value["model"]["vocab"]))
    (tmp_path / "vocab.bpe").write_text("\n".join(" ".join(pair) for pair in value["model"]["merges"]))
    (tmp_path / "dict.txt").write_text("".join(f"{row} 0\n" for row in [*range(298), *backwards()[300:]]))
    vocab = Tokenizer.load(tmp_path).vocab
    assert [name for name in vocab if name.startswith("madeup")] == ["madeupword0000", "madeupword0001"]
    assert vocab["<mask>"] == len(vocab) - 1 == 304


@pytest.mark.slow
@needs_files
def test_roberta_itself(tmp_path):
    for path in (*GPT2.iterdir(), SHARED / "tokenizers" / "roberta" / "dict.txt"):
        (tmp_path / path.name).symlink_to(path)
    roberta = Tokenizer.load(tmp_path)
    names = list(roberta.vocab)
    assert (roberta.vocab_size, roberta.require_masking().mask, roberta.end_of_text_id) == (50265, 50264, 2)
    assert names[50259:50262] == ["ĠstrutConnector", "<|endoftext|>", "madeupword0000"]
    assert roberta.encode("Hello world") == [31414, 232]
    assert roberta.encode_with_mask("The capital of France is <mask>.") == [133, 812, 9, 1470, 16, 50264, 4]


def test_robertas_vocabulary_and_merges(tmp_path):
    pairs = Tokenizer.train(TEXTS, 300, kind="roberta")
    (tmp_path / "vocab.json").write_text(json.dumps(dict(pairs.vocab)))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(pair) for pair in pairs.settings["model"]["merges"]))
    assert read_settings(tmp_path) == pairs.settings


def test_mutated_dictionaries_give_a_tokenizer_or_one_line(tmp_path):
    write_robertas(tmp_path, backwards())
    path = tmp_path / "dict.txt"

    def use(path):
        yield read_settings(path.parent)

    refused, accepted = survive(use, path, mutated(path.read_bytes(), 300, seed=2, words=[b"\n", b" ", b"299"]))
    assert refused > 100 and accepted > 10


def write_vocabulary(folder, words=tuple(TINY.vocab), end="\n"):
    (folder / "vocab.txt").write_bytes("".join(word + end for word in words).encode())
    return folder / "vocab.txt"


def test_vocab_txt(tmp_path):
    for end in ("\n", "\r\n"):
        path = write_vocabulary(tmp_path, end=end)
        assert read_settings(path) == read_settings(tmp_path) == TINY.settings
    path.write_bytes(path.read_bytes().removesuffix(b"\r\n"))
    assert read_settings(path) == TINY.settings


def test_case_of_a_vocab_txt(tmp_path):
    path = write_vocabulary(tmp_path)
    assert read_settings(path)["normalizer"]["lowercase"]
    write_vocabulary(tmp_path, (*BERT_TOKENS, "a", "Ab"))
    assert not read_settings(path)["normalizer"]["lowercase"]
    config = {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False, "model_max_length": 512}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    switches = read_settings(path)["normalizer"]
    assert tuple(switches[name] for name in ("lowercase", "strip_accents", "handle_chinese_chars")) == (
        True,
        False,
        False,
    )


@needs_files
def test_berts_vocabularies():
    uncased, cased = Tokenizer.load(BERT), Tokenizer.load(BERT.with_name("bert-base-cased") / "vocab.txt")
    assert (uncased.vocab_size, uncased.settings["normalizer"]["lowercase"]) == (30522, True)
    assert (cased.vocab_size, cased.settings["normalizer"]["lowercase"]) == (28996, False)
    assert uncased.encode("Hello, my dog is cute") == [7592, 1010, 2026, 3899, 2003, 10140]
    assert uncased.special_ids == cased.special_ids == {0, 100, 101, 102, 103}


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "vocab.txt, line 1: the token is empty; expected one token per line"),
        (b"[UNK]\na\n\nb\n", "vocab.txt, line 3: the token is empty"),
        (b"[UNK]\na\nb\na\n", "vocab.txt, line 4: the token repeats that of line 2;"),
        (b"[PAD]\na\n", "vocab.txt: the vocabulary has no token for unknown words; expected a line [UNK]"),
        (b"[UNK]\n\xff\n", "vocab.txt: not UTF-8 at byte 6"),
        (b"x" * (65 << 20), "larger than 64"),
    ],
)
def test_malformed_vocab_txt(tmp_path, content, part):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_settings(tmp_path)
    assert one_line(caught.value, part)


@pytest.mark.parametrize("content", ["[]", "{", '{"do_lower_case": 1}', '{"strip_accents": "no"}'])
def test_malformed_settings_beside_it(tmp_path, content):
    write_vocabulary(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(DataError) as caught:
        read_settings(tmp_path)
    assert one_line(caught.value, "tokenizer_config.json")


def use(path):
    """Load what may be a tokenizer; if it is one, it has to work."""
    tokenizer = Tokenizer.load(path)
    yield tokenizer.decode(tokenizer.encode("the cat [MASK] sat é"))


@pytest.mark.parametrize(("name", "enough"), [("vocab.txt", 100), ("tokenizer.json", 600)])
def test_mutated_files_give_a_tokenizer_or_one_line(tmp_path, name, enough):
    content = write_vocabulary(tmp_path).read_bytes() if name == "vocab.txt" else TINY.to_json().encode()
    words = [
        b"\n",
        b"\r\n",
        b"##",
        b"[UNK]",
        b"[MASK]\n",
        b"\xff",
        b"null",
        b"{",
        b'"lowercase":2',
        b"1e999",
        b"\\ud800",
    ]
    refused, accepted = survive(use, tmp_path / name, mutated(content, 1000, seed=3, words=words))
    assert refused > enough and accepted > 10
