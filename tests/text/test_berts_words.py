import numpy as np
import pytest
from tiny_text import TEXTS, one_line

from hornbook.errors import UserError
from hornbook.text.special_tokens import BERT_TOKENS
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import word_piece

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
    return Tokenizer(word_piece({word: number for number, word in enumerate(words)}, **settings))


def tokens(tokenizer, text):
    names = list(tokenizer.vocab)
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
        tokenizer.vocab[name] for name in ("a", "[MASK]", ",", "a", "[MASK]")
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


def test_control_characters_are_removed_by_default():
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


def test_what_needs_an_end_of_text_says_so():
    with pytest.raises(UserError) as caught:
        TINY.require_end_of_text()
    assert one_line(caught.value, "no end-of-text token")


def test_a_batch_is_each_text_by_itself():
    batch = ["", *TEXTS[:3], "the cat. " * 20_000, "", "the"]
    arrays = TINY.encode_batch(batch)
    assert [array.tolist() for array in arrays] == [TINY.encode(text) for text in batch]
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}
    with pytest.raises(UserError, match="surrogates"):
        TINY.encode("\ud800")


def test_json_round_trip(tmp_path):
    for switches in ({}, {"lowercase": False, "strip_accents": True, "clean_text": False}, {"strip_accents": False}):
        tokenizer = Tokenizer(word_piece(TINY.vocab, max_input_chars_per_word=7, **switches))
        assert Tokenizer.from_json(tokenizer.to_json()).settings == tokenizer.settings
        assert Tokenizer.load(tokenizer.save(tmp_path)).digest == tokenizer.digest
