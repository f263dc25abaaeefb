"""Start a run from given weights: check that they fit, record them, and load them.

::

    --init-from runs/small --init-optimizer keep
      inspect(asked, recipe, tokenizer) -> Origin(source, path, keep_optimizer, digest)  -> run.json, first of all
      load_origin(origin, state, recipe) -> weights and, if kept, moments; steps and samples start at 0

A fine-tuning has a new head: weights that the source lacks are drawn from the seed, and weights without a use are left
out; both are reported. In all other runs the names of the weights must match exactly.

Once the run has a checkpoint, it no longer needs the source. The price: the source is read twice at the start, so that
a rejected start leaves nothing behind, and every rank verifies by the digest that it has the same weights.
"""

import logging
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import torch

from hornbook.checkpoint import Contents
from hornbook.checkpoint.tensors import digest
from hornbook.config import LabelledConfig, Recipe, changed_keys, recipe_from_dict
from hornbook.config.optimizers import states_of
from hornbook.config.options import show
from hornbook.engine.build_training import home_of
from hornbook.engine.state import Progress, TrainState
from hornbook.errors import CheckpointError, UserError
from hornbook.exchange.contents import (
    mismatches,
    misplaced_blocks,
    recipe_of,
    refuse_misplaced_blocks,
    refuse_unknown_parts,
    tokenizer_of,
    upgrade,
)
from hornbook.exchange.restore import read_source
from hornbook.model import model_of
from hornbook.model.sparse_layers import sparse_layers
from hornbook.optim.updates import build_update
from hornbook.parallel.world import World
from hornbook.text.tokenizer import Tokenizer

_logger = logging.getLogger("hornbook.engine")

_MUST_AGREE = (
    *("family", "num_heads", "activation", "layer_norm_epsilon", "norm_epsilon", "positions", "embedding_scale"),
    *("rope_theta", "rope_share", "rope_scaling", "rope_factor", "rope_original_positions", "rope_low_factor"),
    *("rope_high_factor", "rope_beta_fast", "rope_beta_slow", "rope_attention_factor", "local_rope_theta"),
    *("attention_scale", "attention_cap", "logit_cap", "window", "window_pattern"),
    *("global_every", "local_window", "global_rope_theta"),
)
"""Options that change what a model computes but not the shapes of its weights."""

FREE = (
    *("embedding_dropout", "residual_dropout", "attention_dropout", "initializer_std"),
    *("head", "num_labels", "classifier_pooling"),
)
"""Options that change neither a model's weights nor its computation, except for the head."""


@dataclass(frozen=True, kw_only=True)
class InitFrom:
    """The user's request: a run, a checkpoint or a Hugging Face folder, and whether to keep its moments."""

    source: str
    keep_optimizer: bool = False


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of a run's weights, as recorded in its ``run.json``."""

    source: str
    """As the user named it."""
    path: str
    """The checkpoint or folder that ``source`` resolved to."""
    keep_optimizer: bool
    digest: str
    """SHA-256 of the weights as one safetensors file."""


def inspect(asked: InitFrom, recipe: Recipe, tokenizer: Tokenizer | None) -> Origin:
    """Read a source and return the record of it; ``tokenizer`` is that of the training data, if known.

    Raises:
        UserError: the moments of a pre-training are to be kept in a fine-tuning.
        CheckpointError: the source is missing or damaged, differs from the run in model or tokenizer, or has no moments
            to keep; the message lists all differences.
    """
    if asked.keep_optimizer and isinstance(recipe.objective, LabelledConfig):
        raise UserError(
            "fine-tuning replaces the head, so the optimizer state cannot be kept: remove `init_optimizer='keep'`"
        )
    path, contents = _read(asked.source, asked.keep_optimizer, _logger.warning)
    apart, there = _other_model(contents, recipe), tokenizer_of(contents, path)
    mends = ["change the recipe's [model] or `init_from`"] if apart else []
    if there is not None and tokenizer is not None and there.digest != tokenizer.digest:
        apart.append(f"its tokenizer ({there.digest[:12]}) is not that of the training data ({tokenizer.digest[:12]})")
        mends.append(f"build the data with its own: `hornbook corpus build --tokenizer {shlex.quote(asked.source)}`")
    if problems := _other_moments(contents, recipe) + apart:
        raise CheckpointError(f"{path} cannot start this run: {'; '.join([*problems, *mends])}")
    weights = digest(contents.tensors["model"])
    return Origin(source=asked.source, path=str(path.absolute()), keep_optimizer=asked.keep_optimizer, digest=weights)


def agree(asked: InitFrom, recorded: Origin | None, recipe: Recipe, tokenizer: Tokenizer | None) -> Origin:
    """Return the origin of an existing run that is started again with the same request.

    The source may be gone, since the run resumes from its own checkpoints. Raises UserError if the run started from
    another source, or the source has changed.
    """
    if recorded is None:
        raise UserError(f"the run was not started from {asked.source}: remove `init_from`, or choose another `output`")
    is_gone = asked.source == recorded.source and not Path(asked.source).exists()
    digest_now = recorded.digest if is_gone else inspect(asked, recipe, tokenizer).digest
    if (digest_now, asked.keep_optimizer) != (recorded.digest, recorded.keep_optimizer):
        raise UserError(
            f"the run started from {recorded.path} ({_short(recorded.digest, recorded.keep_optimizer)}), but "
            f"`init_from` is now {asked.source} ({_short(digest_now, asked.keep_optimizer)}): remove `init_from` to "
            "resume the run, or choose another `output`"
        )
    return recorded


def outline(recipe: Recipe) -> TrainState:
    """Return the state of a run on the meta device: names and shapes without memory."""
    with torch.device("meta"):
        model = model_of(recipe, torch.float32)
        return TrainState(model=model, home=home_of(model, build_update(recipe.optimizer), recipe, World()))


def load_origin(origin: Origin, state: TrainState, recipe: Recipe) -> str | None:
    """Copy the weights of a run's origin and, if kept, its moments into a new state.

    Returns:
        A line about new and unused weights of the head; None if all weights were loaded.

    Raises:
        CheckpointError: the origin is gone, damaged or has changed.
    """
    path, contents = _read(origin.path, origin.keep_optimizer, lambda _: None)  # `inspect` has warned
    if digest(contents.tensors["model"]) != origin.digest:
        raise CheckpointError(f"{path} has changed since the run started from it: choose another `output`")
    own = state.home.tensors()
    contents = upgrade(contents, own)
    new, unused = _other_head(contents, recipe, own["model"])
    if unused:
        weights = {name: tensor for name, tensor in contents.tensors["model"].items() if name not in unused}
        contents = replace(contents, tensors={**contents.tensors, "model": weights})
    num_updates = None
    if origin.keep_optimizer:
        progress = Progress.from_json(contents.documents.get("state"), f"{path}/state.json")
        num_updates = state.progress.inherited_updates = progress.num_updates + progress.inherited_updates
    refuse_misplaced_blocks(state.model, contents.tensors["model"], what=str(path), num_updates=num_updates)
    state.load_tensors(contents.tensors)
    if not origin.keep_optimizer:
        for layer in sparse_layers(state.model).values():
            layer.grown_at.zero_()  # ages of blocks restart with the moments
    if not new and not unused:
        return None
    return f"{path}: loaded except {_modules(unused)}; initialized from the seed: {_modules(new)}"


def _read(source: str, keep_optimizer: bool, warn: Callable[[str], None]) -> tuple[Path, Contents]:
    groups = {"model", "optimizer"} if keep_optimizer else {"model"}
    path, contents = read_source(source, only=groups, warn=warn)
    if keep_optimizer:
        refuse_unknown_parts(contents.documents.get("recipe"), source, ("optimizer",))
    if groups - contents.tensors.keys():
        raise CheckpointError(f"{path} has no optimizer state: use `init_optimizer='fresh'`")
    recipe_of(contents, path)  # raises if the recipe is missing
    return path, contents


def _other_moments(contents: Contents, recipe: Recipe) -> list[str]:
    """Return an error message if the source's moments, if read, are not those of the recipe's optimizer."""
    if "optimizer" not in contents.tensors:
        return []
    there, here = _state_names(recipe_from_dict(contents.documents["recipe"]), contents), _state_names(recipe, contents)
    if there == here:
        return []
    told = (", ".join(dict.fromkeys(chain(*names.values()))) or "nothing" for names in (there, here))
    return ["the optimizer keeps {} there and {} here, so start with `init_optimizer='fresh'`".format(*told)]


def _state_names(recipe: Recipe, contents: Contents) -> dict[str, tuple[str, ...]]:
    """Return the names of the states that the recipe's optimizer keeps for each parameter of a source."""
    states = {
        name: states_of(recipe.optimizer, name, tuple(tensor.shape))
        for name, tensor in contents.tensors["model"].items()
        if tensor.dtype.is_floating_point
    }
    return {name: tuple(map(recipe.precision.stored_name, shapes)) for name, shapes in states.items()}


def _other_model(contents: Contents, recipe: Recipe) -> list[str]:
    """List the differences between a source's model and the recipe's: options or, if they agree, tensors.

    Shapes come from a model on the meta device.
    """
    there = recipe_from_dict(contents.documents["recipe"])
    has_moments = "optimizer" in contents.tensors and _state_names(there, contents) == _state_names(recipe, contents)
    groups = {"model", "optimizer"} if has_moments else {"model"}
    here = outline(recipe)
    own = here.home.tensors()
    contents = upgrade(contents, own)
    drawn, unused = _other_head(contents, recipe, own["model"])
    wanted = {name: tensor for name, tensor in own["model"].items() if name not in drawn}
    found = {name: tensor for name, tensor in contents.tensors["model"].items() if name not in unused}
    problems = mismatches(
        {group: own[group] for group in groups} | {"model": wanted}, {**contents.tensors, "model": found}
    )
    differing = _other_options(there, recipe, shapes_differ=bool(problems))
    problems = problems or list(misplaced_blocks(here.model, found))
    return [f"the recipe's model differs: {differing}"] if differing else problems


def _other_options(there: Recipe, here: Recipe, *, shapes_differ: bool) -> str:
    """Describe the relevant options that differ, as in ``hidden_size 64 there and 128 here``."""
    told = {
        change.key: f"{change.key.removeprefix('model.')} {show(change.old)} there and {show(change.new)} here"
        for change in changed_keys(there, here)
        if change.key.removeprefix("model.") in _MUST_AGREE or (shapes_differ and _is_architecture(change.key))
    }
    return told.get("model.family") or ", ".join(told.values())


def _is_architecture(key: str) -> bool:
    if key.startswith("sparsity."):
        names = ("linears", "density", "block_size", "distribution", "embedding_block_size")
        return key.removeprefix("sparsity.") in names
    return key.startswith("model.") and key.removeprefix("model.") not in FREE


def _other_head(contents: Contents, recipe: Recipe, own: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the weights of a fine-tuning's head that its source lacks, and the head's weights only in the source.

    The class layer counts as new unless the classes are the same.
    """
    if not isinstance(recipe.objective, LabelledConfig):
        return set(), set()
    there = recipe_from_dict(contents.documents["recipe"]).objective
    same_labels = getattr(there, "labels", ()) == getattr(recipe.objective, "labels", ())
    common = {name for name in own if name in contents.tensors["model"]}
    taken = {name for name in common if same_labels or not name.startswith("head.labels.")}
    new = {name for name in own if name.startswith("head.") and name not in taken}
    return new, {name for name in contents.tensors["model"] if name.startswith("head.") and name not in taken}


def _modules(names: Collection[str]) -> str:
    """List the layers of a head's weights: ``head.pooler`` for its weight and bias."""
    layers = {name if name.count(".") == 1 else name.rpartition(".")[0] for name in names}
    return ", ".join(sorted(layers)) or "nothing"


def _short(weights: str, keep_optimizer: bool) -> str:
    return f"{weights[:12]}, optimizer {'kept' if keep_optimizer else 'fresh'}"
