import json

import pytest
from tiny_text import TEXTS, one_line, tiny_tokenizer
from transformers import AutoTokenizer, BertTokenizer, RobertaTokenizer

from hornbook.errors import CheckpointError, DataError
from hornbook.exchange.huggingface.tokenizer_files import read_tokenizer, tokenizer_files
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import word_piece

TEXT = "Héllo, the Cat!  it's\n [MASK] <mask></s> 中文 sat\x07mat ﬁ" + "x" * 120
BERT = Tokenizer.train(TEXTS, 100, kind="wordpiece")
TOKENIZERS = {
    "gpt": tiny_tokenizer(),
    "roberta": Tokenizer.train(TEXTS, 300, kind="roberta"),
    "bert": BERT,
    "bert cased": Tokenizer.train(TEXTS, 100, kind="wordpiece", lowercase=False),
    "bert with accents": Tokenizer(word_piece(BERT.vocab, strip_accents=False, handle_chinese_chars=False)),
    "bert as no class of theirs": Tokenizer(word_piece(BERT.vocab, clean_text=False, max_input_chars_per_word=200)),
}
CLASSES = {
    "gpt": "GPT2Tokenizer",
    "roberta": "RobertaTokenizer",
    "bert": "BertTokenizer",
    "bert cased": "BertTokenizer",
}


def write(folder, tokenizer):
    for name, data in tokenizer_files(tokenizer, 512).items():
        (folder / name).write_bytes(data)
    return folder


def framed(tokenizer, ids):
    if tokenizer.pad_id is None:
        return ids
    special = tokenizer.require_masking()
    return [special.cls, *ids, special.sep]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("plain_files", [False, True])
def test_transformers_gives_the_same_ids_between_cls_and_sep(tmp_path, name, plain_files):
    tokenizer = TOKENIZERS[name]
    write(tmp_path, tokenizer)
    if plain_files:
        if name.startswith("bert as"):
            pytest.skip("these settings stand in tokenizer.json alone")
        (tmp_path / "tokenizer.json").unlink()
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(TEXT, split_special_tokens=True)["input_ids"] == framed(tokenizer, tokenizer.encode(TEXT))
    their_ids = (theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id, theirs.pad_token_id)
    if tokenizer.pad_id is None:
        assert set(their_ids) == {None}
    else:
        special = tokenizer.require_masking()
        assert their_ids == (special.cls, special.sep, special.mask, special.pad)
    assert (theirs.eos_token_id, theirs.model_max_length) == (tokenizer.end_of_text_id, 512)
    assert type(theirs).__name__ == CLASSES.get(name, type(theirs).__name__)
    assert read_tokenizer(tmp_path, 300).digest == tokenizer.digest


@pytest.mark.parametrize("name", ["roberta", "bert"])
def test_transformers_fills_the_same_gaps(tmp_path, name):
    tokenizer = TOKENIZERS[name]
    theirs = AutoTokenizer.from_pretrained(write(tmp_path, tokenizer))
    for text in ("the {} sat", "{}", "the cat  {}. {}{} mat"):
        text = text.replace("{}", theirs.mask_token)
        assert theirs(text)["input_ids"] == framed(tokenizer, tokenizer.encode_with_mask(text))


def test_pairs_have_two_segments(tmp_path):
    theirs = AutoTokenizer.from_pretrained(write(tmp_path, BERT))
    pair = theirs("the cat", "the mat")
    first, second = BERT.encode("the cat"), BERT.encode("the mat")
    special = BERT.require_masking()
    assert pair["input_ids"] == [special.cls, *first, special.sep, *second, special.sep]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)


@pytest.mark.parametrize("lowercase", [True, False])
def test_what_transformers_writes_for_bert(tmp_path, lowercase):
    vocab = dict(BERT.vocab)
    theirs = BertTokenizer(vocab=vocab, do_lower_case=lowercase, strip_accents=False)
    theirs.save_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path, 100)
    assert ours.settings == word_piece(BERT.vocab, lowercase=lowercase, strip_accents=False)
    assert theirs(TEXT, split_special_tokens=True)["input_ids"] == framed(ours, ours.encode(TEXT))


def test_what_transformers_writes_for_roberta(tmp_path):
    pairs = TOKENIZERS["roberta"]
    RobertaTokenizer(
        vocab=dict(pairs.vocab), merges=[tuple(pair) for pair in pairs.settings["model"]["merges"]]
    ).save_pretrained(tmp_path)
    assert set(read_tokenizer(tmp_path, 300).special) == set(pairs.special)
    assert read_tokenizer(tmp_path, 300).digest == TOKENIZERS["roberta"].digest


def test_settings_that_contradict_each_other(tmp_path):
    write(tmp_path, BERT)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    for change, key in (
        ({"do_lower_case": False}, "lowercase"),
        ({"strip_accents": False}, "strip_accents"),
        ({"tokenize_chinese_chars": False}, "handle_chinese_chars"),
    ):
        path.write_text(json.dumps(settings | change))
        with pytest.raises(DataError) as caught:
            read_tokenizer(tmp_path, 100)
        assert one_line(caught.value, "do not agree on", key)
    path.write_text(json.dumps(settings | {"strip_accents": True}))
    assert read_tokenizer(tmp_path, 100).digest == BERT.digest


def test_a_vocabulary_larger_than_the_model(tmp_path):
    with pytest.raises(DataError) as caught:
        read_tokenizer(write(tmp_path, BERT), 99)
    assert one_line(caught.value, "the tokenizer has 100 tokens, its model 99 rows")


def test_a_token_that_vocab_txt_cannot_hold():
    broken = Tokenizer(word_piece({**BERT.vocab, "a\nb": 100}))
    with pytest.raises(CheckpointError) as caught:
        tokenizer_files(broken, 512)
    assert one_line(caught.value, "line end")
