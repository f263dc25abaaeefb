"""From a tokenizer.json of any kind to a model that writes: a store, two steps of training, text."""

import json

import pytest
from tiny_libraries import KINDS, library, library_json
from tiny_text import TEXTS

from hornbook.__main__ import main
from hornbook.corpora.store import open_store
from hornbook.text.tokenizer import Tokenizer

RECIPE = """[model]
num_layers = 1
hidden_size = 16
num_heads = 2
vocab_size = 352
max_positions = 32

[data]
train = ["CORPUS"]
sequence_length = 16

[training]
steps = 2
global_batch_size = 8
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_two_steps_and_text(tmp_path, capsys, kind):
    (tmp_path / "tokenizer.json").write_text(library_json(kind))
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    build = ["corpus", "build", tmp_path / "texts.jsonl", "--tokenizer", tmp_path, "--output", tmp_path / "corpus"]
    assert main([*map(str, build), "--validation", "0"]) == 0
    store, end = open_store(tmp_path / "corpus"), Tokenizer.load(tmp_path).end_of_text_id
    for number, text in enumerate(TEXTS):
        expected = library(kind).encode(text, add_special_tokens=False).ids
        assert store.document(number).tolist() == [*expected, end]
    (tmp_path / "tiny.toml").write_text(RECIPE.replace("CORPUS", str(tmp_path / "corpus")))
    words = ["train", tmp_path / "tiny.toml", "--output", tmp_path / "run", "--device", "cpu", "--threads", "1"]
    assert main([*map(str, words)]) == 0
    capsys.readouterr()
    words = ["--prompt", "story 1: the cat", "--output-length", "8", "--stop-token", "none", "--json-lines"]
    assert main(["generate", str(tmp_path / "run"), *words, "--threads", "1"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["tokens"] == 8 and isinstance(written["text"], str)
