"""Hugging Face folders of a few kilobytes, and how to damage them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import randomize, tiny_config
from tiny_text import tiny_tokenizer

from hornbook.checkpoint import Contents
from hornbook.config import Recipe, TrainingConfig, recipe_to_dict
from hornbook.errors import HornbookError
from hornbook.exchange.huggingface import read_folder, write_folder
from hornbook.model import build_model, initialize

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def tiny_contents(**changes: object) -> Contents:
    """A checkpoint of a model of two layers with noise in every weight, its tokenizer, and no moments."""
    config = tiny_config(**{"vocab_size": 300, **changes})
    model = build_model(config, torch.float32)
    initialize(model, 7)
    randomize(model)
    weights = {name: model.logical(name, parameter.detach()) for name, parameter in model.own_parameters()}
    recipe = Recipe(name="tiny", model=config, training=TrainingConfig(steps=1))
    files = {"tokenizer.json": tiny_tokenizer().to_json().encode()}
    return Contents(step=5, tensors={"model": weights}, documents={"recipe": recipe_to_dict(recipe)}, files=files)


def tiny_folder(folder: Path, **changes: object) -> Path:
    """The same as hornbook exports it."""
    write_folder(folder, tiny_contents(**changes))
    return folder


def edit_config(folder: Path, **changes: object) -> None:
    """Set options of ``config.json``."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Let ``change`` do what it likes to the tensors of ``model.safetensors``."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def shard(folder: Path, num_shards: int = 3) -> dict[str, Any]:
    """Replace ``model.safetensors`` by shards and their index, which is returned."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    weight_map = {}
    for number in range(num_shards):
        name = f"model-{number + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[number::num_shards]}
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    write_index(folder, index)
    return index


def write_index(folder: Path, index: object) -> None:
    (folder / INDEX).write_text(json.dumps(index))


def to_pickle(folder: Path, *, legacy: bool = False) -> Path:
    """Replace ``model.safetensors`` by ``pytorch_model.bin``."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    return folder / "pytorch_model.bin"


def same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def refusal(folder: Path, **options: Any) -> str:
    """The one line with which a folder is refused, as the user's mistake."""
    with pytest.raises(HornbookError) as caught:
        read_folder(folder, **options)
    message = str(caught.value)
    assert "\n" not in message and caught.value.exit_code == 2
    return message
