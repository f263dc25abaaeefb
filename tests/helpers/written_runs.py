"""A run whose model writes at once, without training: random weights, a tokenizer of 300 tokens."""

from pathlib import Path

import torch
from tiny import randomize, tiny_config, tiny_model
from tiny_text import tiny_tokenizer

from hornbook import checkpoint
from hornbook.config import DataConfig, Recipe, TrainingConfig, recipe_to_dict

MAX_POSITIONS = 64


def save_run(folder: Path, *, with_tokenizer: bool = True) -> Path:
    """Save the one checkpoint of a run in ``folder``; its texts are of all bytes, those that control terminals too."""
    config = tiny_config(vocab_size=300, max_positions=MAX_POSITIONS)
    model = tiny_model(vocab_size=300, max_positions=MAX_POSITIONS)
    randomize(model)
    with torch.no_grad():
        model.embedding.positions *= 4.0
    recipe = Recipe(name="written", model=config, data=DataConfig(synthetic=True), training=TrainingConfig(steps=1))
    weights = {name: model.logical(name, parameter.detach()) for name, parameter in model.own_parameters()}
    contents = checkpoint.Contents(
        step=1,
        tensors={"model": weights},
        documents={"recipe": recipe_to_dict(recipe)},
        files={"tokenizer.json": tiny_tokenizer().to_json().encode()} if with_tokenizer else {},
    )
    checkpoint.save(folder / "checkpoints", contents)
    return folder
