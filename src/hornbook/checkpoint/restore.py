"""From a checkpoint back to a model: names and shapes checked, all disagreements told at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hornbook.checkpoint.load import load, resolve
from hornbook.config import Recipe, recipe_from_dict
from hornbook.errors import CheckpointError
from hornbook.model import LanguageModel, build_model
from hornbook.optim.precision import compute_dtype
from hornbook.text.tokenizer import Tokenizer

Tensors = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A trained model with what is needed to use it."""

    model: LanguageModel
    recipe: Recipe
    tokenizer: Tokenizer | None
    step: int
    path: Path

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer.

        Raises:
            CheckpointError: the model was trained on data that came without one.
        """
        if self.tokenizer is None:
            raise CheckpointError(
                f"{self.path} has no tokenizer.json, since its training data came without one: "
                "put the tokenizer's file there, or train on a store built with `hornbook corpus build`"
            )
        return self.tokenizer


def load_model(path: Path, device: torch.device, *, compute: str = "auto") -> LoadedModel:
    """Return the model of a checkpoint, in evaluation mode on ``device``.

    Args:
        path: a checkpoint, or a run's folder, whose newest sound checkpoint is taken.
        device: where the model goes.
        compute: dtype of the activations: auto, fp32 or bf16.

    Raises:
        CheckpointError: nothing sound is there, or its weights disagree with its recipe.
    """
    chosen = resolve(path)
    contents = load(chosen, only={"model"})
    recipe = recipe_from_dict(contents.documents["recipe"])
    model = build_model(recipe.model, compute_dtype(compute, device))
    weights = {name: model.logical(name, parameter.detach()) for name, parameter in model.own_parameters()}
    refuse_mismatch({"model": weights}, contents.tensors, what=str(chosen))
    with torch.no_grad():
        model.embedding.tokens.zero_()
        for name, tensor in weights.items():
            tensor.copy_(contents.tensors["model"][name])
    model.to(device).eval()
    model.tie()
    file = contents.files.get("tokenizer.json")
    tokenizer = Tokenizer.from_json(file.decode()) if file else None
    return LoadedModel(model=model, recipe=recipe, tokenizer=tokenizer, step=contents.step, path=chosen)


def refuse_mismatch(own: Tensors, stored: Tensors, *, what: str) -> None:
    """Raise CheckpointError that lists every missing, extra or differently shaped tensor; all files of ``own`` count."""
    problems = []
    for file, tensors in own.items():
        found = stored.get(file, {})
        problems += [f"{name} is missing" for name in sorted(tensors.keys() - found.keys())]
        problems += [f"{name} is not expected" for name in sorted(found.keys() - tensors.keys())]
        problems += [
            f"{name} is {list(found[name].shape)} and should be {list(tensors[name].shape)}"
            for name in sorted(tensors.keys() & found.keys())
            if found[name].shape != tensors[name].shape
        ]
    if problems:
        raise CheckpointError(f"{what} does not fit the model of its recipe: {'; '.join(problems)}")
