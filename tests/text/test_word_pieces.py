import json
from dataclasses import replace

import numpy as np
import pytest
from mutations import mutated, survive
from tiny_text import SHARED, TEXTS, one_line

from hornbook.errors import DataError, UserError
from hornbook.text.special_tokens import BERT_TOKENS
from hornbook.text.streaming import token_bytes
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_kinds import parse_rules, read_rules
from hornbook.text.word_pieces import WordPieces

BERT = SHARED / "tokenizers" / "bert-base-uncased"
needs_bert = pytest.mark.skipif(not BERT.exists(), reason="../shared/data/tokenizers/bert-base-uncased is not there")
TINY = Tokenizer.train(TEXTS, 100, kind="wordpiece")
WORDS = (
    *BERT_TOKENS,
    "horn",
    "##book",
    "cafe",
    "café",
    "Café",
    "a",
    ",",
    "'",
    "s",
    "[",
    "]",
    "mask",
    "##s",
    "中",
    "文",
)


def made_of(*words, **settings):
    return Tokenizer(
        WordPieces(
            vocab={word: number for number, word in enumerate(words)},
            special=BERT_TOKENS,
            **({"lowercase": True} | settings),
        )
    )


def tokens(tokenizer, text):
    names = list(tokenizer.rules.vocab)
    return [names[number] for number in tokenizer.encode(text)]


def test_words_are_spelled_by_the_longest_tokens():
    tokenizer = made_of(*WORDS)
    assert tokens(tokenizer, "Hornbook's, hornbooks\n a\tCAFÉ") == [
        *("horn", "##book", "'", "s", ",", "horn", "##book", "##s", "a", "cafe")
    ]
    assert tokens(tokenizer, "hornx a bookhorn") == ["[UNK]", "a", "[UNK]"]
    assert tokens(tokenizer, "") == tokens(tokenizer, " \n ") == []


def test_names_of_special_tokens_are_text():
    tokenizer = made_of(*WORDS)
    assert tokens(tokenizer, "a [MASK] [SEP][CLS]") == ["a", "[", "mask", "]", "[", "[UNK]", "]", "[", "[UNK]", "]"]
    assert tokenizer.encode_with_mask("a [MASK], a[MASK]") == [
        tokenizer.rules.vocab[name] for name in ("a", "[MASK]", ",", "a", "[MASK]")
    ]


@pytest.mark.parametrize(
    ("settings", "text", "expected"),
    [
        ({"lowercase": False}, "Café café", ["Café", "café"]),
        ({"lowercase": False, "strip_accents": True}, "Café café", ["[UNK]", "cafe"]),
        ({"strip_accents": False}, "CAFÉ", ["café"]),
        ({}, "中文", ["中", "文"]),
        ({"handle_chinese_chars": False}, "中文", ["[UNK]"]),
        ({}, "a\x00a\x07 a", ["[UNK]", "a"]),
        ({"clean_text": False}, "a\x07 a", ["[UNK]", "a"]),
        ({"max_input_chars_per_word": 7}, "hornbook horn", ["[UNK]", "horn"]),
        ({"max_input_chars_per_word": 8}, "hornbook horn", ["horn", "##book", "horn"]),
    ],
)
def test_settings(settings, text, expected):
    assert tokens(made_of(*WORDS, "a##a", **settings), text) == expected


def test_control_characters_are_taken_out_unless_told_otherwise():
    words = (*WORDS, "##a")
    assert tokens(made_of(*words), "a\x07a") == ["a", "##a"]
    assert tokens(made_of(*words, clean_text=False), "a\x07a") == ["[UNK]"]


def test_decoding_puts_words_together():
    tokenizer = made_of(*WORDS)
    ids = tokenizer.encode_with_mask("Hornbook's [MASK], a")
    assert tokenizer.decode(ids) == "hornbook ' s [MASK], a"
    with pytest.raises(UserError) as caught:
        tokenizer.decode([len(WORDS)])
    assert one_line(caught.value, str(len(WORDS)))


def test_roles():
    special = TINY.require_masking()
    assert (TINY.pad_id, special.pad, special.cls, special.sep, special.mask) == (0, 0, 2, 3, 4)
    assert TINY.special_ids == {0, 1, 2, 3, 4} == special.special_ids
    assert TINY.end_of_text_id is None


def test_what_needs_bytes_or_an_end_of_text_says_so():
    with pytest.raises(UserError) as caught:
        TINY.require_end_of_text()
    assert one_line(caught.value, "no end-of-text token")
    with pytest.raises(UserError) as caught:
        token_bytes(TINY)
    assert one_line(caught.value, "WordPiece", "expected a byte-level BPE")


def test_a_batch_is_each_text_by_itself():
    batch = ["", *TEXTS[:3], "the cat. " * 20_000, "", "the"]
    arrays = TINY.encode_batch(batch)
    assert [array.tolist() for array in arrays] == [TINY.encode(text) for text in batch]
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}
    with pytest.raises(UserError, match="surrogates"):
        TINY.encode("\ud800")


def test_json_round_trip(tmp_path):
    for settings in ({}, {"lowercase": False, "strip_accents": True, "clean_text": False}, {"strip_accents": False}):
        tokenizer = Tokenizer(replace(TINY.rules, max_input_chars_per_word=7, **settings))
        assert Tokenizer.from_json(tokenizer.to_json()).rules == tokenizer.rules
        assert Tokenizer.load(tokenizer.save(tmp_path)).digest == tokenizer.digest


def write_vocabulary(folder, words=tuple(TINY.rules.vocab), end="\n"):
    (folder / "vocab.txt").write_bytes("".join(word + end for word in words).encode())
    return folder / "vocab.txt"


def test_vocab_txt(tmp_path):
    for end in ("\n", "\r\n"):
        path = write_vocabulary(tmp_path, end=end)
        assert read_rules(path) == read_rules(tmp_path) == TINY.rules
    path.write_bytes(path.read_bytes().removesuffix(b"\r\n"))
    assert read_rules(path) == TINY.rules


def test_case_of_a_vocab_txt(tmp_path):
    path = write_vocabulary(tmp_path)
    assert read_rules(path).lowercase
    write_vocabulary(tmp_path, (*BERT_TOKENS, "a", "Ab"))
    assert not read_rules(path).lowercase
    config = {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False, "model_max_length": 512}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    rules = read_rules(path)
    assert (rules.lowercase, rules.strip_accents, rules.handle_chinese_chars) == (True, False, False)


@needs_bert
def test_berts_vocabularies():
    uncased, cased = Tokenizer.load(BERT), Tokenizer.load(BERT.with_name("bert-base-cased") / "vocab.txt")
    assert (uncased.vocab_size, uncased.rules.lowercase) == (30522, True)
    assert (cased.vocab_size, cased.rules.lowercase) == (28996, False)
    assert uncased.encode("Hello, my dog is cute") == [7592, 1010, 2026, 3899, 2003, 10140]
    assert uncased.special_ids == cased.special_ids == {0, 100, 101, 102, 103}


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "vocab.txt, line 1: the token is empty; expected a token a line"),
        (b"[UNK]\na\n\nb\n", "vocab.txt, line 3: the token is empty"),
        (b"[UNK]\na\nb\na\n", "vocab.txt, line 4: the token is that of line 2 again"),
        (b"[PAD]\na\n", "vocab.txt: the vocabulary has no token for unknown words; expected [UNK]"),
        (b"[UNK]\n\xff\n", "vocab.txt: not UTF-8 at byte 6"),
        (b"x" * (65 << 20), "larger than 64"),
    ],
)
def test_malformed_vocab_txt(tmp_path, content, part):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_rules(tmp_path)
    assert one_line(caught.value, part)


@pytest.mark.parametrize("content", ["[]", "{", '{"do_lower_case": 1}', '{"strip_accents": "no"}'])
def test_malformed_settings_beside_it(tmp_path, content):
    write_vocabulary(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(DataError) as caught:
        read_rules(tmp_path)
    assert one_line(caught.value, "tokenizer_config.json")


def change(path, new):
    value = json.loads(TINY.to_json())
    *parents, last = path
    place = value
    for name in parents:
        place = place[name]
    place[last] = new
    return value


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (change(["normalizer"], None), "its normalizer is not BERT's"),
        (change(["normalizer"], {"type": "BertNormalizer"}), "its normalizer is not BERT's"),
        (change(["normalizer", "lowercase"], 1), "its normalizer is not BERT's"),
        (change(["normalizer", "type"], "NFC"), "its normalizer is not BERT's"),
        (change(["pre_tokenizer"], {"type": "Whitespace"}), "its pre-tokenizer is not BERT's"),
        (change(["model", "continuing_subword_prefix"], "@@"), "begins with '@@'; expected '##'"),
        (change(["model", "max_input_chars_per_word"], 0), "max_input_chars_per_word is 0"),
        (change(["model", "max_input_chars_per_word"], True), "max_input_chars_per_word is True"),
        (change(["model", "unk_token"], "the"), "no token for unknown words; expected [UNK]"),
        (change(["model", "unk_token"], ["the"]), "no token for unknown words; expected [UNK]"),
        (change(["model", "vocab", "the"], 9), "each once"),
        (change(["model", "vocab"], []), "table of tokens"),
        (change(["added_tokens", 0, "id"], 9), "another id"),
        (change(["added_tokens", 0, "special"], False), "'[PAD]' is not special"),
        (
            change(["added_tokens"], [{"id": 100, "content": "word", "special": True}]),
            "'word' could come out of a text",
        ),
        (change(["added_tokens"], [{"id": 100, "content": "##!", "special": True}]), "'##!' could come out of a text"),
        (change(["added_tokens"], [{"id": 100, "content": "!", "special": True}]), "'!' could come out of a text"),
    ],
)
def test_malformed_tokenizer_json(value, part):
    with pytest.raises(DataError) as caught:
        parse_rules(json.dumps(value).encode(), "t.json")
    assert one_line(caught.value, "t.json", part)


def test_an_early_file_without_a_type():
    value = json.loads(TINY.to_json())
    del value["model"]["type"]
    assert parse_rules(json.dumps(value).encode(), "t.json") == TINY.rules


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
