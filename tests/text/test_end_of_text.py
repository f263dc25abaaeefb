"""The end-of-text token that the files of a tokenizer's folder name."""

import json

import pytest
import tokenizers
from tiny_libraries import library_json
from tiny_text import TEXTS, one_line, tiny_tokenizer

from hornbook.errors import DataError
from hornbook.text.tokenizer import Tokenizer


def folder(path, tokenizer, **files):
    """A folder with a ``tokenizer.json`` and other JSON files, named without their suffix."""
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(tokenizer if isinstance(tokenizer, str) else json.dumps(tokenizer))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def like_phi3():
    """Two special tokens that could end a text, of which the post-processor adds neither."""
    value = json.loads(library_json("llama3"))
    value["added_tokens"][2]["content"] = "<|endoftext|>"
    return value


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"eos_token": "<|endoftext|>"}},
        {"tokenizer_config": {"eos_token": {"content": "<|endoftext|>", "__type": "AddedToken"}}},
        {"tokenizer_config": {"eos_token": None}, "special_tokens_map": {"eos_token": {"content": "<|endoftext|>"}}},
        {"generation_config": {"eos_token_id": 302}},
        {"tokenizer_config": {}, "generation_config": {"eos_token_id": [302, 301]}},
    ],
)
def test_the_files_decide_between_several(tmp_path, files):
    there = folder(tmp_path / "phi", like_phi3(), **files)
    found = Tokenizer.load(there)
    assert (found.end_of_text, found.end_of_text_id) == ("<|endoftext|>", 302)
    assert Tokenizer.load(there / "tokenizer.json").digest == found.digest
    again = Tokenizer.from_json(found.to_json())
    assert (again.end_of_text, again.digest) == ("<|endoftext|>", found.digest), "as from the folder of a store"
    theirs = tokenizers.Tokenizer.from_str(found.to_json())
    assert theirs.encode("the cat", add_special_tokens=False).ids == found.encode("the cat") != []


def test_a_name_that_the_rules_would_find_changes_nothing(tmp_path):
    for number, tokenizer in enumerate((tiny_tokenizer(), Tokenizer.from_json(library_json("t5")))):
        named = {"eos_token": tokenizer.end_of_text}
        there = folder(tmp_path / str(number), tokenizer.to_json(), tokenizer_config=named)
        assert Tokenizer.load(there).digest == tokenizer.digest and Tokenizer.load(there).form == tokenizer.form


def test_an_unusual_name_is_found_and_is_no_text(tmp_path):
    value = json.loads(library_json("words"))
    value["added_tokens"] = [token for token in value["added_tokens"] if token["content"] != "[EOS]"]
    name = next(token for token in value["model"]["vocab"] if token not in ("[EOS]", "[UNK]"))
    assert Tokenizer.load(folder(tmp_path / "plain", value)).end_of_text is None
    found = Tokenizer.load(folder(tmp_path / "named", value, tokenizer_config={"eos_token": name}))
    assert found.end_of_text == name and name in found.special
    gpt = json.loads(tiny_tokenizer().to_json())
    last = list(tiny_tokenizer().vocab)[-2]
    chat = Tokenizer.load(folder(tmp_path / "chat", gpt, tokenizer_config={"eos_token": last}))
    assert (chat.end_of_text, chat.form, chat.digest) == (last, "byte-bpe", Tokenizer.from_json(chat.to_json()).digest)
    assert chat.digest != tiny_tokenizer().digest


@pytest.mark.parametrize("name", ["[SEP]", "not in the vocabulary"])
def test_names_that_do_not_apply(tmp_path, name):
    bert = Tokenizer.train(TEXTS, 100, kind="wordpiece")
    for number, tokenizer in enumerate((bert, tiny_tokenizer())):
        there = folder(tmp_path / str(number), tokenizer.to_json(), tokenizer_config={"eos_token": name})
        assert Tokenizer.load(there).digest == tokenizer.digest
    there = folder(tmp_path / "bert", bert.to_json(), tokenizer_config={"eos_token": "[MASK]"})
    assert Tokenizer.load(there).end_of_text is None


def test_plain_files_are_named_by_their_settings_too(tmp_path):
    tokenizer = tiny_tokenizer()
    (tmp_path / "vocab.json").write_text(json.dumps(tokenizer.vocab))
    merges = [" ".join(pair) for pair in tokenizer.settings["model"]["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    last = list(tokenizer.vocab)[-2]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": last}))
    assert Tokenizer.load(tmp_path).end_of_text == last


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ({"tokenizer_config": []}, "expected an object with settings"),
        ({"tokenizer_config": {"eos_token": 5}}, "the end-of-text token is 5; expected the name of a token"),
        ({"generation_config": {"eos_token_id": "x"}}, "the end-of-text token is 'x'; expected the id of a token"),
    ],
)
def test_malformed_files_are_one_line(tmp_path, files, part):
    there = folder(tmp_path / "phi", like_phi3(), **files)
    with pytest.raises(DataError) as caught:
        Tokenizer.load(there)
    assert one_line(caught.value, f"{next(iter(files))}.json: ", part)


@pytest.mark.parametrize("name", ["the", 5, ["x"], None])
def test_a_forged_record_is_refused(name):
    value = json.loads(library_json("llama3"))
    value["model"]["end_of_text"] = name
    if name is None:
        assert Tokenizer.from_json(json.dumps(value)).end_of_text == "<|end_of_text|>"
        return
    with pytest.raises(DataError) as caught:
        Tokenizer.from_json(json.dumps(value))
    assert one_line(caught.value, "is not a special token; restore the file")
