"""Read the recipe and the tokenizer in a checkpoint, which may come from an untrusted source, maybe of an old version.

::

    contents.documents["recipe"]       -> recipe_of    -> a Recipe with a vocabulary
    contents.files["tokenizer.json"]   -> tokenizer_of -> a Tokenizer, or None without the file
    blocks.0.attention.qkv_bias [3·H·K]                -> blocks.0.attention.qkv.bias [3, H·K]      earlier versions'

A tensor is renamed only if the model has the new name and not the old one, so custom models keep their names.
"""

import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from torch import Tensor

from hornbook.checkpoint.tensors import Contents
from hornbook.config import Recipe, recipe_from_dict
from hornbook.config.options import TAGS, choices, show
from hornbook.config.recipe import SCRIPTS
from hornbook.errors import CheckpointError, DataError, RecipeError
from hornbook.text.tokenizer import Tokenizer

START: Final = "start_token"
"""Name of the document of an imported model: whether its prompts start with the end-of-text token."""
UNTRAINED: Final = "untrained"
"""Name of the document of an imported model: the weights that were drawn at random, since its source lacks them."""


def stored_recipe(document: object, path: str) -> Recipe:
    """Return the complete recipe in ``document``, a result of ``recipe_to_dict``.

    Args:
        document: parsed JSON.
        path: path of the file, for errors.

    Raises:
        CheckpointError: it is not such a recipe; one line that names the file and all mistakes.
    """
    try:
        recipe = recipe_from_dict(document, path)
    except RecipeError as error:
        raise CheckpointError(f"{error}; restore {path}") from error
    if recipe.model.vocab_size is None:
        raise CheckpointError(f"{path}: model.vocab_size is missing; restore the file")
    if getattr(recipe.model, "head", None) == "classification" and getattr(recipe.model, "num_labels", 0) is None:
        raise CheckpointError(f"{path}: model.num_labels is missing; restore the file")
    return recipe


def refuse_unknown_parts(document: object, source: str, sections: Iterable[str] = TAGS) -> None:
    """Raise RecipeError for a stored recipe with an unregistered part of a user's script.

    Args:
        document: a result of ``recipe_to_dict``; other mistakes are left to ``recipe_from_dict``.
        source: the run or checkpoint of the recipe.
        sections: the sections whose parts are needed; training needs all.

    Raises:
        RecipeError: it names such a part; the message is one line.
    """
    stored = document if isinstance(document, Mapping) else {}
    for section in sections:
        values = stored.get(section)
        tag = values.get(TAGS[section]) if isinstance(values, Mapping) else None
        if isinstance(tag, str) and tag not in choices(section):
            what = "of the family" if section == "model" else f"made with the {section}"
            scripts = stored.get(SCRIPTS)
            script = scripts.get(section) if isinstance(scripts, Mapping) else None
            message = (
                f"{source} has a model {what} {show(tag)}, which hornbook does not have: run this command with the "
                f"script that registers it, python {shlex.quote(str(script or 'SCRIPT.py'))} instead of hornbook"
            )
            raise RecipeError([message])


def recipe_of(contents: Contents, path: object) -> Recipe:
    """Return the recipe of a checkpoint; ``path`` names the checkpoint in errors.

    Raises CheckpointError if ``recipe.json`` is missing or malformed.
    """
    if "recipe" not in contents.documents:
        raise CheckpointError(f"{path} has no recipe.json to describe the weights; use another checkpoint")
    return stored_recipe(contents.documents["recipe"], f"{path}/recipe.json")


def tokenizer_of(contents: Contents, path: object) -> Tokenizer | None:
    """Return the tokenizer of a checkpoint, None if it has none; ``path`` names the checkpoint in errors.

    Raises CheckpointError if ``tokenizer.json`` is malformed.
    """
    file = contents.files.get("tokenizer.json")
    if file is None:
        return None
    try:
        return Tokenizer.from_json(file.decode())
    except (DataError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}/tokenizer.json cannot be read: {error}; use another checkpoint") from error


def has_start_token(contents: Contents) -> bool:
    """Return whether the prompts of a decoder start with the end-of-text token.

    They do in hornbook's training; for a model of another project, it is what its tokenizer does in transformers.
    """
    start = contents.documents.get(START)
    return start if isinstance(start, bool) else "source" not in contents.documents


class Rename(NamedTuple):
    """A renamed parameter; its optimizer state has the same name with a suffix."""

    old: re.Pattern[str]
    new: str
    shape: tuple[int, ...] | None = None
    """The new shape, with -1 for one inferred size; None if unchanged."""


RENAMES: Final = (
    Rename(re.compile(r"(.*\.attention)\.qkv_weight(\.\w+)?"), r"\1.qkv.weight\2"),
    Rename(re.compile(r"(.*\.attention)\.qkv_bias(\.\w+)?"), r"\1.qkv.bias\2", shape=(3, -1)),
)


def upgrade(contents: Contents, own: Mapping[str, Collection[str]]) -> Contents:
    """Return the contents of a checkpoint with a model's current names.

    Args:
        contents: contents of any version.
        own: names of the model's tensors and, if any, of its optimizer's, by group.
    """
    groups: dict[str, Mapping[str, Tensor]] = {}
    for group, stored in contents.tensors.items():
        known = own.get(group, ())
        old = {name: rename for name in stored if name not in known for rename in RENAMES if rename.old.fullmatch(name)}
        names = {name: rename.old.sub(rename.new, name) for name, rename in old.items()}
        names = {name: new for name, new in names.items() if new in known and new not in stored}
        upgraded: dict[str, Tensor] = {}
        for name, tensor in stored.items() if names else ():
            shape = old[name].shape if name in names else None
            if shape is not None and tensor.numel() % abs(math.prod(shape)) == 0:  # else comparing the shapes raises
                tensor = tensor.reshape(shape)
            upgraded[names.get(name, name)] = tensor
        groups[group] = upgraded if names else stored
    return replace(contents, tensors=groups)
