"""Whether the tensors of a checkpoint fit the model of its recipe: their names, shapes, dtypes and indices.

::

    recipe -> size of the model       refused before it is built if the stored weights are much smaller
           -> model on the meta device
                  names, shapes       equal to those of the stored tensors
                  dtypes              integers: the same; numbers: any floating dtype
                  positions of blocks inside of their matrices, ordered, each once

Every reader makes these checks, before it copies or uses a tensor: a checkpoint may come from an untrusted source, and
its hashes prove only that nobody changed it since it was written.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from hornbook.checkpoint.load import StoredTensors, dtypes_of, load, shapes_of
from hornbook.checkpoint.tensors import DTYPES, Contents, Shard
from hornbook.config import Recipe
from hornbook.errors import CheckpointError, HornbookError, RecipeError
from hornbook.exchange.documents import recipe_of, refuse_unknown_parts, upgrade
from hornbook.model import LanguageModel, model_of
from hornbook.model.sparse_layers import misplaced_blocks
from hornbook.storage.system import format_bytes
from hornbook.wording import first_few

Tensors = Mapping[str, Mapping[str, Tensor]]
Shapes = Mapping[str, Mapping[str, Tensor | Shard]]
"""Tensors of a model by group and name, or a rank's shards of them; only their shapes matter."""


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
