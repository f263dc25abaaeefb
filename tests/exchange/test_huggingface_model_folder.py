import json
import logging
import random

import pytest
import torch
from tiny import tiny_config
from tiny_huggingface import INDEX, WEIGHTS, edit_weights, refusal, same, shard, tiny_contents, tiny_folder
from tiny_text import tiny_tokenizer

from hornbook.checkpoint import load, save
from hornbook.checkpoint.tensors import digest
from hornbook.config import recipe_from_dict
from hornbook.errors import CheckpointError, HornbookError
from hornbook.exchange.huggingface import is_folder, read_folder
from hornbook.exchange.restore import load_model, read_source
from hornbook.storage.files import sha256_file
from hornbook.text.tokenizer import Tokenizer

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path):
    return tiny_folder(tmp_path / "my model")


def test_a_folder_becomes_the_contents_of_a_checkpoint(folder, tmp_path):
    contents = read_folder(folder)
    assert contents.step == 0
    recipe = recipe_from_dict(contents.documents["recipe"])
    assert (recipe.name, recipe.model) == ("my-model", tiny_config(vocab_size=300, feed_forward_size=None))
    assert same(contents.tensors["model"], tiny_contents().tensors["model"])
    assert Tokenizer.from_json(contents.files["tokenizer.json"].decode()).digest == tiny_tokenizer().digest
    saved = load(save(tmp_path / "checkpoints", contents))
    assert same(saved.tensors["model"], contents.tensors["model"])
    assert saved.documents == json.loads(json.dumps(contents.documents))
    assert saved.files == contents.files


def test_the_source_is_remembered_with_the_hash_of_each_file(folder):
    assert "source" not in read_folder(folder).documents
    source = read_folder(folder, with_source=True).documents["source"]
    weights = {"size": (folder / WEIGHTS).stat().st_size, "sha256": sha256_file(folder / WEIGHTS)}
    assert source == {"folder": str(folder), "files": {WEIGHTS: weights}}
    shard(folder)
    assert len(read_folder(folder, with_source=True).documents["source"]["files"]) == 4


def test_what_is_taken_for_a_folder_of_theirs(folder, tmp_path):
    assert is_folder(folder)
    assert not is_folder(tmp_path)
    assert not is_folder(tmp_path / "missing")
    checkpoint = save(tmp_path / "checkpoints", tiny_contents())
    assert not is_folder(checkpoint)
    (checkpoint / "config.json").touch()
    assert not is_folder(checkpoint), "what has our manifest is ours, if damaged"
    (folder / "config.json").unlink()
    assert not is_folder(folder), "a lone model.safetensors may be anybody's"
    shard(folder)
    assert is_folder(folder)


def test_a_model_is_loaded_from_it_as_from_a_checkpoint(folder, tmp_path):
    checkpoint = save(tmp_path / "checkpoints", tiny_contents())
    theirs, ours = load_model(str(folder), CPU, compute="fp32"), load_model(checkpoint, CPU, compute="fp32")
    assert (theirs.step, theirs.path, ours.path) == (0, folder, checkpoint)
    assert same(dict(theirs.model.named_parameters()), dict(ours.model.named_parameters()))
    assert not theirs.model.training
    assert theirs.require_tokenizer().digest == ours.require_tokenizer().digest
    assert digest(read_source(folder)[1].tensors["model"]) == sha256_file(checkpoint / "model-00000.safetensors")


def test_a_run_is_read_as_before(tmp_path):
    checkpoint = save(tmp_path / "run" / "checkpoints", tiny_contents())
    assert read_source(tmp_path / "run")[0] == checkpoint
    with pytest.raises(CheckpointError, match="expected a run's folder, a checkpoint or a Hugging Face folder"):
        read_source(tmp_path / "missing")


def test_vocabulary_and_merges_alone_are_a_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    found = Tokenizer.from_json(read_folder(folder).files["tokenizer.json"].decode())
    assert found.digest == tiny_tokenizer().digest


def test_no_tokenizer(folder, caplog):
    for name in ("tokenizer.json", "vocab.json"):
        (folder / name).unlink()
    assert read_folder(folder).files == {}
    assert not caplog.records
    with pytest.raises(CheckpointError, match="has no tokenizer that hornbook can read") as caught:
        load_model(folder, CPU).require_tokenizer()
    assert "\n" not in str(caught.value)


def prefix_space(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))


def unigram(folder):
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram"}}))


def malformed(folder):
    (folder / "tokenizer.json").write_text("{")


def surrogate(folder):
    (folder / "tokenizer.json").unlink()
    vocab = json.loads((folder / "vocab.json").read_text())
    last = next(token for token, number in vocab.items() if number == 298)
    del vocab[last]
    (folder / "vocab.json").write_text(json.dumps(vocab | {"\ud800": 298}))


def smaller_model(folder):
    def change(tensors):
        tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"][:290].clone()

    edit_weights(folder, change)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 290}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (prefix_space, "add_prefix_space"),
        (unigram, "cannot run it (Missing vocab"),
        (malformed, "not valid JSON"),
        (surrogate, "is not in vocab.json"),
        (smaller_model, "the tokenizer has 300 tokens, its model 290 rows"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_left_out_with_a_warning(folder, change, message, caplog):
    change(folder)
    warnings = []
    assert read_folder(folder, warn=warnings.append).files == {}
    assert len(warnings) == 1 and message in warnings[0] and "\n" not in warnings[0]
    with caplog.at_level(logging.WARNING):
        load_model(folder, CPU)
    assert message in caplog.text


@pytest.mark.parametrize("text", ["", "[]", "{", '{"n_embd": NaN}', '{"a": 1, "a": 2}', "3", "\udcff"])
def test_a_malformed_config(folder, text):
    (folder / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    assert str(folder / "config.json") in refusal(folder)


def test_an_empty_folder(tmp_path):
    assert refusal(tmp_path) == f"{tmp_path / 'config.json'} is missing or not a plain file; download the folder again"


def mutated(value, draws):
    """A JSON value with one change somewhere in it."""
    odd = (None, True, 0, -1, 3.5, 1e308, 10**30, "", "../x", [], {}, [1], "\ud800", "a" * 500)
    if isinstance(value, dict) and value and draws.random() < 0.9:
        key = draws.choice(sorted(value))
        if draws.random() < 0.2:
            return {name: entry for name, entry in value.items() if name != key}
        return value | {key: mutated(value[key], draws)}
    if isinstance(value, list) and value and draws.random() < 0.8:
        at = draws.randrange(len(value))
        return [*value[:at], mutated(value[at], draws), *value[at + 1 :]]
    return draws.choice(odd)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", INDEX, "model-00001-of-00003.safetensors"])
def test_a_mutated_folder_is_read_or_refused_in_a_line(folder, name):
    """Tried with 12,000 mutations, all of one line; here are as many as time allows."""
    shard(folder)
    sound, draws, refused = (folder / name).read_bytes(), random.Random(11), 0
    for _ in range(60):
        if name.endswith(".json") and draws.random() < 0.7:
            data = json.dumps(mutated(json.loads(sound), draws)).encode()
        else:
            flipped = bytearray(sound)
            flipped[draws.randrange(min(len(sound), 2000))] ^= 1 << draws.randrange(8)
            data = bytes(flipped[: draws.choice([len(sound), draws.randrange(len(sound))])])
        (folder / name).write_bytes(data)
        warnings = []
        try:
            read_folder(folder, warn=warnings.append)
        except HornbookError as error:
            warnings.append(str(error))
            assert error.exit_code == 2
        refused += bool(warnings)
        assert not any("\n" in warning for warning in warnings)
    assert refused > 20
