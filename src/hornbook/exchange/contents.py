"""Read the contents of a checkpoint, which may come from an untrusted source, maybe of an old version.

::

    contents.documents["recipe"]       -> recipe_of    -> a Recipe with a vocabulary
    contents.files["tokenizer.json"]   -> tokenizer_of -> a Tokenizer, or None without the file
    blocks.0.attention.qkv_bias [3·H·K]                -> blocks.0.attention.qkv.bias [3, H·K]      earlier versions'

A tensor is renamed only if the model has the new name and not the old one, so custom models keep their names. Then the
tensors must fit the model of the recipe::

    recipe -> size of the model       refused before it is built if the stored weights are much smaller
           -> model on the meta device
                  names, shapes       equal to those of the stored tensors
                  dtypes              integers: the same; numbers: any floating dtype
                  positions of blocks inside of their matrices, ordered, each once

Every reader makes these checks, before it copies or uses a tensor: the hashes of a checkpoint prove only that nobody
changed it since it was written. Names and links of files in folders of other systems must not lead outside (`inside`).
"""

import math
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from hornbook.checkpoint.load import dtypes_of, load, shapes_of
from hornbook.checkpoint.manifest import is_plain_name
from hornbook.checkpoint.tensors import DTYPES, Contents, Shard, StoredTensors
from hornbook.config import Recipe, recipe_from_dict
from hornbook.config.options import TAGS, choices, show
from hornbook.config.recipe import SCRIPTS
from hornbook.errors import CheckpointError, DataError, HornbookError, RecipeError
from hornbook.model import LanguageModel, model_of
from hornbook.model.sparse_layers import BlockSparseLinear
from hornbook.storage.system import format_bytes, storage_errors
from hornbook.text.tokenizer import Tokenizer
from hornbook.wording import first_few

START: Final = "start_token"
"""Name of the document of an imported model: whether its prompts start with the end-of-text token."""
UNTRAINED: Final = "untrained"
"""Name of the document of an imported model: the weights that were drawn at random, since its source lacks them."""
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
"""Start of what git leaves instead of a large file if Git LFS is not installed."""
Tensors = Mapping[str, Mapping[str, Tensor]]
Shapes = Mapping[str, Mapping[str, Tensor | Shard]]
"""Tensors of a model by group and name, or a rank's shards of them; only their shapes matter."""


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


def build_described(
    contents: Contents, recipe: Recipe, what: str, compute_dtype: torch.dtype
) -> tuple[LanguageModel, Contents]:
    """Return the model of a checkpoint on the meta device, and the contents with the model's current names.

    Args:
        contents: of the checkpoint, with the group ``model``.
        recipe: that of the contents.
        what: the checkpoint, for errors.
        compute_dtype: dtype of the activations.

    Raises:
        CheckpointError: the tensors do not fit the model.
    """
    count = recipe.num_parameters()  # 0 for a custom model that cannot count its parameters
    stored = sum(map(math.prod, shapes_of(contents.tensors.get("model", {})).values()))
    if count > 2 * stored:  # before building it; smaller differences are left to the comparison of all tensors
        raise CheckpointError(
            f"{what}/recipe.json describes a model of {format_bytes(4 * count)} in fp32, but its weights "
            f"take {format_bytes(4 * stored)}: restore the file or use another checkpoint"
        )
    with torch.device("meta"):
        model = model_of(recipe, compute_dtype)
    own = {"model": model.saved_tensors()}
    contents = upgrade(contents, own)
    refuse_mismatch(own, contents.tensors, what=what)
    refuse_misplaced_blocks(model, contents.tensors["model"], what=what)
    return model, contents


def misfit(path: Path) -> str | None:
    """Return why the tensors of an intact checkpoint do not fit its recipe; None if they do.

    None also for a model of a family that is not registered here.
    """
    try:
        contents = load(path, only={"model"}, verified=True)
        refuse_unknown_parts(contents.documents.get("recipe"), str(path), ("model",))
        build_described(contents, recipe_of(contents, path), str(path), torch.float32)
    except RecipeError:
        return None
    except HornbookError as error:
        return str(error)
    return None


def misplaced_blocks(model: nn.Module, stored: Mapping[str, Tensor], num_updates: int | None = None) -> Iterator[str]:
    """Yield what is wrong with the stored positions and ages of blocks, with the names of the tensors.

    Args:
        model: on any device, including meta.
        stored: tensors of a checkpoint, with the shapes and dtypes of the model's; layers without any are skipped.
        num_updates: updates of the weights so far, which no block can be younger than; None if they do not matter.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, BlockSparseLinear) and f"{name}.rows" in stored:
            rows, columns, grown_at = (stored[f"{name}.{kind}"] for kind in ("rows", "columns", "grown_at"))
            yield from (f"{name}: {fault}" for fault in layer.faults(rows, columns))
            first, last = (int(end) for end in torch.aminmax(grown_at))
            if first < 0 or (num_updates is not None and last > num_updates):
                grown = first if first < 0 else last
                yield f"{name}: a block grew after update {grown}, expected 0 to {num_updates or 'the last one'}"


def refuse_misplaced_blocks(
    model: nn.Module, stored: Mapping[str, Tensor], *, what: str, num_updates: int | None = None
) -> None:
    """Raise CheckpointError if positions or ages of stored blocks are wrong; see `misplaced_blocks`."""
    if problems := list(misplaced_blocks(model, stored, num_updates)):
        raise CheckpointError(f"{what} has wrong positions of blocks: {'; '.join(first_few(problems))}")


def refuse_other_dtypes(own: Mapping[str, Mapping[str, Shard]], stored: Tensors, *, what: str) -> None:
    """Raise CheckpointError if a stored tensor's dtype differs from the state's."""
    for group, shards in own.items():
        found = stored[group]
        dtypes = dtypes_of(found) if isinstance(found, StoredTensors) else {}
        for name, shard in shards.items():
            if name in dtypes and dtypes[name] != DTYPES[str(shard.values.dtype)]:
                raise CheckpointError(
                    f"{what}: {group} {name} is stored as {dtypes[name]}, but the recipe's [precision] requires "
                    f"{DTYPES[str(shard.values.dtype)]}: restore the checkpoint or the recipe"
                )


def refuse_mismatch(own: Shapes, stored: Tensors, *, what: str) -> None:
    """Raise CheckpointError if there are ``mismatches``."""
    if problems := mismatches(own, stored):
        raise CheckpointError(f"{what} does not fit the model of its recipe: {'; '.join(problems)}")


def mismatches(own: Shapes, stored: Tensors) -> list[str]:
    """List the first missing, extra and reshaped tensors of ``stored``, and those of another kind, by group."""
    problems = []
    for file, tensors in own.items():
        found, wanted = shapes_of(stored.get(file, {})), shapes_of(tensors)
        problems += first_few([f"{name} is missing" for name in sorted(wanted.keys() - found.keys())])
        problems += first_few([f"{name} is not expected" for name in sorted(found.keys() - wanted.keys())])
        problems += first_few(
            [
                f"{name} is {list(found[name])}, expected {list(wanted[name])}"
                for name in sorted(wanted.keys() & found.keys())
                if found[name] != wanted[name]
            ]
        )
        kinds, expected = dtypes_of(stored.get(file, {})), dtypes_of(tensors)
        problems += first_few(
            [
                f"{name} is stored as {kinds[name]}, expected {expected[name]}"
                for name in sorted(expected.keys() & kinds.keys())
                if kinds[name] != expected[name]
                and not all(kind.startswith(("F", "BF")) for kind in (kinds[name], expected[name]))  # a loss of meaning
            ]
        )
    return problems


def inside(folder: Path, name: str) -> Path:
    """Return the regular file ``name`` of a folder, or of the cache's blobs if the folder is a snapshot in it.

    Raises CheckpointError if the name is not plain, the file is missing or only a pointer of Git LFS, or a link leads
    out of the folder.
    """
    if not is_plain_name(name):
        raise CheckpointError(f"{folder}: {name!r:.120} is not a plain file name; files must be in the folder itself")
    path = folder / name
    with storage_errors("read", path):
        target, home = path.resolve(), folder.resolve()
        blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
        if not (target.is_relative_to(home) or target.is_relative_to(blobs)):
            raise CheckpointError(f"{path} is a link out of its folder; replace it by the file")
        if not target.is_file():
            raise CheckpointError(f"{path} is missing or not a plain file; download the folder again")
        with path.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise CheckpointError(f"{path} is a pointer of Git LFS, not the file: run `git lfs pull` in {folder}")
    return path
