"""A Hugging Face folder as the contents of a checkpoint.

::

    config.json -> [model] of a recipe -> which weights there have to be
    weights     -> checked, renamed, reshaped                              -> Contents(step=0, ...)
    tokenizer   -> tokenizer.json, or a warning where hornbook cannot read it

The recipe that comes out holds the model; its other sections are defaults, and its length of one step stands for
nothing, since a recipe needs one. The price: no state of an optimizer comes along, for these folders have none.
"""

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hornbook.checkpoint.contents import Contents
from hornbook.checkpoint.huggingface import gpt2
from hornbook.checkpoint.huggingface.tokenizer_files import read_tokenizer
from hornbook.checkpoint.huggingface.weights import PICKLED_FILES, SAFE_FILES, inside, read_weights
from hornbook.checkpoint.manifest import MANIFEST
from hornbook.config import Recipe, recipe_from_dict, recipe_to_dict
from hornbook.errors import CheckpointError, DataError, RecipeError
from hornbook.storage.documents import read_json
from hornbook.storage.files import sha256_file

CONFIG: Final = "config.json"

_logger = logging.getLogger("hornbook.checkpoint")


def is_folder(path: Path) -> bool:
    """Tell whether ``path`` is meant to be a Hugging Face folder: it has their files and no manifest of ours."""
    marks = (CONFIG, SAFE_FILES[1], *PICKLED_FILES)
    return path.is_dir() and not (path / MANIFEST).exists() and any((path / name).exists() for name in marks)


def read_folder(
    path: Path, *, allow_pickle: bool = False, with_source: bool = False, warn: Callable[[str], None] = _logger.warning
) -> Contents:
    """Return the model and the tokenizer of a Hugging Face folder as a checkpoint of step 0, weights in fp32.

    Args:
        path: the folder.
        allow_pickle: open ``pytorch_model.bin``, too, with nothing but tensors allowed in it.
        with_source: also return the document ``source``: the folder, and size and SHA-256 of each file of weights.
        warn: is told of a tokenizer that hornbook cannot read and that is left out.

    Raises:
        CheckpointError: a file is missing or malformed, the model is not one of hornbook's, or its weights do not fit
            its config; all that is wrong with the weights in one line.
        StorageError: a file cannot be read.
    """
    config = _read_config(path)
    recipe = _recipe(config, path)
    tensors, files = read_weights(path, allow_pickle=allow_pickle)
    tied = config.get("tie_word_embeddings") is not False
    weights = gpt2.to_ours(tensors, recipe.model, tied=tied, what=str(path))
    documents: dict[str, Any] = {"recipe": recipe_to_dict(recipe)}
    if with_source:
        documents["source"] = {"folder": str(path.absolute()), "files": _hashes(files)}
    return Contents(step=0, tensors={"model": weights}, documents=documents, files=_tokenizer(path, recipe, warn))


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = read_json(inside(folder, CONFIG), "the config of the model")
    except DataError as error:
        raise CheckpointError(str(error)) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{folder / CONFIG} is not the config of a model: expected a JSON object")
    kind = config.get("model_type", gpt2.MODEL_TYPE if "n_embd" in config else None)
    if kind != gpt2.MODEL_TYPE:
        raise CheckpointError(
            f"{folder / CONFIG} is of a model of the type {kind!r:.80}; hornbook reads {gpt2.MODEL_TYPE!r} alone"
        )
    return config


def _recipe(config: Mapping[str, Any], folder: Path) -> Recipe:
    """Return the recipe of the model, checked by the validator of all recipes; its complaints name their options."""
    model = gpt2.to_section(config, str(folder / CONFIG))
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.absolute().name).lstrip("_.-")[:100] or "imported"
    try:
        return recipe_from_dict({"name": name, "model": model, "training": {"steps": 1}}, CONFIG)
    except RecipeError as error:
        told = re.sub(r"\bmodel\.(\w+)", lambda match: gpt2.their_name(match[1]), str(error))
        raise CheckpointError(f"{folder / CONFIG}: {told}") from error


def _tokenizer(folder: Path, recipe: Recipe, warn: Callable[[str], None]) -> dict[str, bytes]:
    assert recipe.model.vocab_size is not None, "gpt2.to_section gives one"
    try:
        tokenizer = read_tokenizer(folder, recipe.model.vocab_size)
    except DataError as error:
        warn(f"the tokenizer is left out, since hornbook cannot use it: {error}")
        return {}
    return {"tokenizer.json": tokenizer.to_json().encode()} if tokenizer else {}


def _hashes(files: list[Path]) -> dict[str, dict[str, object]]:
    return {file.name: {"size": file.stat().st_size, "sha256": sha256_file(file)} for file in files}
