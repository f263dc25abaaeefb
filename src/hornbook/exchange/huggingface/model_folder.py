"""Read a Hugging Face folder or a TensorFlow checkpoint as the contents of a checkpoint.

::

    config.json -> [model] of a recipe -> the expected weights
    weights     -> checked, renamed, reshaped                              -> Contents(step=0, ...)
    tokenizer   -> tokenizer.json, or a warning if hornbook cannot read it

The resulting recipe describes the model; its other sections are defaults, and its length of one step is arbitrary. The
price: optimizer states are not imported; TensorFlow's are left out.
"""

import logging
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from hornbook.checkpoint.load import checkpoints_of, committed
from hornbook.checkpoint.manifest import MANIFEST
from hornbook.checkpoint.tensors import Contents
from hornbook.config import Recipe, recipe_from_dict, recipe_to_dict
from hornbook.errors import CheckpointError, DataError, RecipeError
from hornbook.exchange.contents import START, UNTRAINED, inside
from hornbook.exchange.huggingface.common import labels_of
from hornbook.exchange.huggingface.families import FAMILIES, objective_of
from hornbook.exchange.huggingface.tokenizer_files import has_start_token, read_tokenizer
from hornbook.exchange.huggingface.weights import PICKLED_FILES, SAFE_FILES, read_weights
from hornbook.plugs import plugged
from hornbook.storage.files import sha256_file
from hornbook.storage.json_files import read_json
from hornbook.text.tokenizer import Tokenizer

CONFIG: Final = "config.json"
_OLD_CONFIG: Final = "bert_config.json"
"""Name of a BERT's config in Google's checkpoints, and in folders that were converted from them early."""

_logger = logging.getLogger("hornbook.checkpoint")


def is_folder(path: Path) -> bool:
    """Return whether ``path`` is a Hugging Face folder or a TensorFlow checkpoint, rather than a hornbook one."""
    if path.is_dir() and any((path / name).exists() for name in (CONFIG, SAFE_FILES[1], *PICKLED_FILES)):
        return not (path / MANIFEST).exists()
    if (path / MANIFEST).exists() or committed(checkpoints_of(path)):
        return False
    return any(room.is_checkpoint(path) for room in plugged("checkpoint readers"))


def read_folder(
    path: Path, *, allow_pickle: bool = False, with_source: bool = False, warn: Callable[[str], None] = _logger.warning
) -> Contents:
    """Return the model and the tokenizer of a Hugging Face folder as a checkpoint of step 0, weights in fp32.

    Args:
        path: the folder; or a TensorFlow checkpoint, by its folder, its prefix or its index.
        allow_pickle: whether to read ``pytorch_model.bin``, too, with only tensors allowed in it.
        with_source: whether to add the document ``source``: the folder, and size and SHA-256 of each weights file.
        warn: called for heads that are missing or left out, for an optimizer state that is left out, and for a
            tokenizer that hornbook cannot read.

    Raises:
        CheckpointError: a file is missing or malformed, hornbook does not have the model, or the weights do not fit
            the config; the message lists all problems with the weights.
    """
    has_weights = any((path / name).exists() for name in (*SAFE_FILES, *PICKLED_FILES))  # before TensorFlow's
    found = None if has_weights else _find_index(path)
    folder = found.index_file.parent if found else path
    file, config = _read_config(folder, found)
    notes: list[str] = []
    if found is None:
        tensors, files = read_weights(folder, allow_pickle=allow_pickle)
    else:
        tensors, files, notes = found.room.read_weights(found.index_file, _kind(config))
    recipe = _recipe(config, file, tensors)
    tied = config.get("tie_word_embeddings") is not False
    imported = FAMILIES[_kind(config)].read(tensors, recipe.model, tied=tied, what=str(path))
    for note in (*notes, *imported.notes):
        warn(note)
    documents: dict[str, Any] = {"recipe": recipe_to_dict(recipe)}
    if imported.untrained:
        documents[UNTRAINED] = list(imported.untrained)
    if with_source:
        documents["source"] = {"folder": str(folder.absolute()), "files": _hashes(files)}
    tokenizer = _tokenizer(folder, recipe, warn)
    documents[START] = tokenizer is not None and has_start_token(folder, tokenizer)
    files_of_ours = {"tokenizer.json": tokenizer.to_json().encode()} if tokenizer else {}
    return Contents(step=0, tensors={"model": imported.weights}, documents=documents, files=files_of_ours)


class _Found(NamedTuple):
    """A checkpoint of another system, by its index, and the room that reads it."""

    room: ModuleType
    index_file: Path


def _find_index(path: Path) -> _Found | None:
    found = ((room, room.find_index(path)) for room in plugged("checkpoint readers"))
    return next((_Found(room, index) for room, index in found if index is not None), None)


def _read_config(folder: Path, found: _Found | None) -> tuple[Path, dict[str, Any]]:
    """Return the file that describes the model, and its content in transformers' names."""
    old_name = _OLD_CONFIG if (folder / _OLD_CONFIG).exists() else CONFIG
    name = CONFIG if (folder / CONFIG).exists() else old_name
    if found is not None:
        name = found.room.config_name(found.index_file)
    file = inside(folder, name)
    try:
        config = read_json(file, "the config of the model")
    except DataError as error:
        raise CheckpointError(str(error)) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} is not the config of a model: expected a JSON object")
    if found is not None:
        config = found.room.translate_config(name, config, str(file))
    kind = _kind(config)
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise CheckpointError(f"{file} is for a model of type {kind!r:.80}; hornbook reads {', '.join(FAMILIES)}")
    return file, config


def _kind(config: Mapping[str, Any]) -> Any:
    """Return the type of a model; old configs lack it but have options that only one type has."""
    marks = {"n_embd": "gpt2", "type_vocab_size": "bert"}
    return config.get("model_type", next((kind for option, kind in marks.items() if option in config), None))


def _recipe(config: Mapping[str, Any], file: Path, weights: Collection[str]) -> Recipe:
    """Return the recipe of the model, validated, with transformers' option names in messages."""
    family = FAMILIES[_kind(config)]
    model = family.to_section(config, str(file))
    objective = _objective(config, model.get("head", "pretraining"), weights)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", file.absolute().parent.name).lstrip("_.-")[:100] or "imported"
    try:
        sections = {"model": model, "objective": objective, "training": {"steps": 1}}
        return recipe_from_dict({"name": name, **sections}, file.name)
    except RecipeError as error:
        told = re.sub(r"\bmodel\.(\w+)", lambda match: family.their_name(match[1]), str(error))
        raise CheckpointError(f"{file}: {told}") from error


def _objective(config: Mapping[str, Any], head: str, weights: Collection[str]) -> dict[str, object]:
    """Return the objective of the model, the default for further training."""
    if head == "pretraining":
        return {"name": objective_of(_kind(config), weights)}
    return {"name": head} | ({"labels": list(labels_of(config))} if head == "classification" else {})


def _tokenizer(folder: Path, recipe: Recipe, warn: Callable[[str], None]) -> Tokenizer | None:
    assert recipe.model.vocab_size is not None, "each family sets it"
    try:
        return read_tokenizer(folder, recipe.model.vocab_size)
    except DataError as error:
        warn(f"the tokenizer is left out, since hornbook cannot use it: {error}")
        return None


def _hashes(files: list[Path]) -> dict[str, dict[str, object]]:
    return {file.name: {"size": file.stat().st_size, "sha256": sha256_file(file)} for file in files}
