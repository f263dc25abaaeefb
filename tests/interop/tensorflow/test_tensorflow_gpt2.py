"""GPT-2 as OpenAI published it: variables of TensorFlow, ``hparams.json``, ``encoder.json`` and ``vocab.bpe``."""

import json
from pathlib import Path

import pytest
import torch
from tiny_bundle import MAGIC, openai_variables, with_slots, write_bundle, write_json
from tiny_huggingface import refusal, same, tiny_contents
from tiny_text import tiny_tokenizer
from torch import Tensor

from hornbook.config import recipe_from_dict
from hornbook.exchange.huggingface import gpt2, is_folder, read_folder

HPARAMS = {"n_vocab": 300, "n_ctx": 24, "n_embd": 16, "n_head": 2, "n_layer": 2}


def openai(folder: Path, *, slots: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """A folder as OpenAI's script downloads it, with a small vocabulary; returns the weights as ours."""
    contents = tiny_contents()
    ours = dict(contents.tensors["model"])
    config = recipe_from_dict(contents.documents["recipe"]).model
    variables = openai_variables(gpt2.to_theirs(ours, config))
    write_bundle(folder / "model.ckpt", with_slots(variables, *slots) if slots else variables)
    write_json(folder / "hparams.json", HPARAMS)
    pairs = tiny_tokenizer()
    (folder / "encoder.json").write_text(json.dumps(dict(pairs.vocab)))
    (folder / "vocab.bpe").write_text("".join(f"{left} {right}\n" for left, right in pairs.settings["model"]["merges"]))
    return ours


@pytest.mark.parametrize("source", ["124M", "124M/model.ckpt", "124M/model.ckpt.index"])
def test_a_folder_as_openai_published_it(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    expected, messages = openai(Path("124M")), []
    assert is_folder(Path(source))
    contents = read_folder(Path(source), with_source=True, warn=messages.append)
    assert same(contents.tensors["model"], expected) and messages == []
    recipe = recipe_from_dict(contents.documents["recipe"])
    model = recipe.model
    assert (recipe.name, model.family, recipe.objective.name) == ("124M", "gpt", "causal_lm")
    assert (model.activation, model.layer_norm_epsilon) == ("gelu_tanh", 1e-5)
    assert json.loads(contents.files["tokenizer.json"])["model"]["vocab"] == dict(tiny_tokenizer().vocab)


def test_moments_are_left_out_and_named(tmp_path):
    expected, messages = openai(tmp_path / "mine", slots=("Adam", "Adam_1")), []
    assert same(read_folder(tmp_path / "mine", warn=messages.append).tensors["model"], expected)
    (note,) = messages
    assert f"the optimizer state is left out ({2 * len(expected) + 2} variables" in note


@pytest.mark.parametrize(
    ("hparams", "message"),
    [
        (None, "model.ckpt.index is a GPT-2 of OpenAI: put its hparams.json next to it"),
        ({"n_vocab": 300, "n_embd": 16}, "hparams.json lacks n_ctx, n_head, n_layer"),
        ({**HPARAMS, "n_layer": 3}, "h.2.ln_1.weight is missing"),
        ({**HPARAMS, "n_ctx": 25}, "wpe.weight is [24, 16], expected [25, 16]"),
        ({**HPARAMS, "n_vocab": "many"}, "vocab_size"),
        ([], "hparams.json is not the config of a model"),
    ],
)
def test_hparams_that_do_not_fit(tmp_path, hparams, message):
    openai(tmp_path / "124M")
    (tmp_path / "124M" / "hparams.json").unlink()
    if hparams is not None:
        write_json(tmp_path / "124M" / "hparams.json", hparams)
    assert message in refusal(tmp_path / "124M" / "model.ckpt")


@pytest.mark.parametrize("source", ["old", "old/model.ckpt"])
def test_format_1_is_named(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    Path("old").mkdir()
    write_json(Path("old/hparams.json"), HPARAMS)
    Path("old/model.ckpt").write_bytes(bytes(100) + MAGIC)
    Path("old/model.ckpt.meta").write_bytes(b"a graph")
    assert is_folder(Path(source))
    assert refusal(Path(source)).startswith("old/model.ckpt is a TensorFlow checkpoint of format 1")


def test_a_wide_convolution_is_no_matrix(tmp_path):
    openai(tmp_path / "124M")
    variables = openai_variables({"transformer.h.0.mlp.c_fc.weight": torch.ones(16, 64)})
    (name,) = variables
    contents = tiny_contents()
    config = recipe_from_dict(contents.documents["recipe"]).model
    whole = openai_variables(gpt2.to_theirs(contents.tensors["model"], config))
    write_bundle(tmp_path / "124M" / "model.ckpt", whole | {name: torch.ones(2, 16, 64)})
    assert "h.0.mlp.c_fc.weight is [2, 16, 64], expected [16, 64]" in refusal(tmp_path / "124M")
