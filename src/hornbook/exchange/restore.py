"""Restore models from checkpoints, after checks of what they contain.

::

    runs/demo | runs/demo/checkpoints/step-00001200 | gpt2/ (Hugging Face) | openai-community/gpt2 (their hub)
    | uncased_L-2_H-128_A-2/bert_model.ckpt (TensorFlow)
      -> read_source -> path and Contents
      -> load_model  -> a model in evaluation mode, its recipe and its tokenizer

Before a tensor is copied or used: a model whose stored weights are much smaller than its recipe says is refused before
it is built; names and shapes are those of the model on the meta device; integers have its dtypes, numbers any floating
one; positions of blocks are inside their matrices, ordered, each once. A checkpoint may come from an untrusted source,
and its hashes prove only that nobody changed it since it was written.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from hornbook.checkpoint.contents import Contents, Shard
from hornbook.checkpoint.listing import require_source
from hornbook.checkpoint.load import StoredTensors, dtypes_of, load, resolve, shapes_of
from hornbook.checkpoint.tensors import DTYPES
from hornbook.config import Recipe, UnknownPart
from hornbook.config.options import show
from hornbook.errors import CheckpointError, HornbookError, RecipeError
from hornbook.exchange import huggingface
from hornbook.exchange.documents import (
    has_start_token,
    recipe_of,
    refuse_oversize,
    refuse_unknown_parts,
    tokenizer_of,
    upgrade,
)
from hornbook.model import LanguageModel, model_of
from hornbook.model.initialize import fill_unsaved_buffers
from hornbook.model.sparse_layers import misplaced_blocks
from hornbook.parallel.device import compute_dtype
from hornbook.text.hub_client import is_model_name
from hornbook.text.tokenizer import Tokenizer
from hornbook.wording import first_few

_logger = logging.getLogger("hornbook.checkpoint")
Tensors = Mapping[str, Mapping[str, Tensor]]
Shapes = Mapping[str, Mapping[str, Tensor | Shard]]
"""Tensors of a model by group and name, or a rank's shards of them; only their shapes matter."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A trained model with its recipe and tokenizer."""

    model: LanguageModel
    recipe: Recipe
    tokenizer: Tokenizer | None
    step: int
    path: Path
    has_start_token: bool = True
    """Whether prompts of text start with the end-of-text token, see `hornbook.exchange.documents.has_start_token`."""
    untrained: tuple[str, ...] = ()
    """Weights that were drawn at random in an import, since its source lacks them."""

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer.

        Raises CheckpointError if the model was trained on data without one, or imported without one.
        """
        if self.tokenizer is None:
            raise CheckpointError(
                f"{self.path} has no tokenizer that hornbook can read, since its training data, or the folder that it "
                "was imported from, has none:  train on a store built with `hornbook corpus build`, or add "
                "tokenizer.json to the imported folder"
            )
        return self.tokenizer


def read_source(
    source: Path | str, *, only: Collection[str] | None = None, warn: Callable[[str], None] = _logger.warning
) -> tuple[Path, Contents]:
    """Return the folder and the contents of a source of weights.

    Args:
        source: a checkpoint; a run's folder, for its newest intact checkpoint; a Hugging Face folder;
            a TensorFlow checkpoint of a BERT or GPT-2; or ``owner/name`` on the Hugging Face hub, if no such path
            exists.
        only: groups of tensors to read, such as ``{"model"}``; None for all.
        warn: called for damaged checkpoints that are skipped, and for a tokenizer that cannot be read.

    Raises:
        CheckpointError: the source is missing or damaged.
        RecipeError: it uses an unregistered part.
        HornbookError: the hub cannot be reached, or has no such model.
    """
    require_source(source)
    path = Path(source)
    if not path.exists() and is_model_name(source):
        path = huggingface.fetch(source)
    if huggingface.is_folder(path):
        return path, huggingface.read_folder(path, warn=warn)
    chosen = resolve(path, warn)
    contents = load(chosen, only=only)
    if (only is None or "model" in only) and "model" not in contents.tensors:
        raise CheckpointError(f"{chosen} has no weights: it has no tensors in the group model; use another checkpoint")
    refuse_unknown_parts(contents.documents.get("recipe"), str(source), ("model",))
    return chosen, contents


def load_model(path: Path | str, device: torch.device, *, compute: str = "auto") -> LoadedModel:
    """Return the model of a checkpoint, in evaluation mode on ``device``.

    Args:
        path: see ``read_source``.
        device: device of the model.
        compute: dtype of the activations: auto, fp32, bf16 or fp16.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or its weights do not match its recipe.
    """
    chosen, contents = read_source(path, only={"model"})
    recipe, tokenizer = recipe_of(contents, chosen), tokenizer_of(contents, chosen)
    if isinstance(recipe.objective, UnknownPart):
        part = f"the objective {show(recipe.objective.name)}, which is not registered here"
        _logger.warning(f"{chosen} was trained with {part}; it is needed only for training")
    model, contents = build_described(contents, recipe, str(chosen), compute_dtype(compute, device))
    model.eval().allocate(device)
    fill_unsaved_buffers(model, recipe.training.seed)
    with torch.no_grad():
        for _, parameter in model.own_parameters():
            parameter.zero_()  # padding rows are not in the checkpoint
        for name, tensor in model.saved_tensors().items():
            tensor.copy_(contents.tensors["model"][name])
    return LoadedModel(
        model=model,
        recipe=recipe,
        tokenizer=tokenizer,
        step=contents.step,
        path=chosen,
        has_start_token=has_start_token(contents),
        untrained=tuple(contents.documents.get(huggingface.UNTRAINED, ())),
    )


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
    refuse_oversize(contents, recipe, what)
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
        dtypes = found.dtypes if isinstance(found, StoredTensors) else {}
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
        problems += first_few([*_other_kinds(dtypes_of(stored.get(file, {})), dtypes_of(tensors))])
    return problems


def _other_kinds(found: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    """Yield the tensors that cannot be copied without a loss of meaning; a weight may have any floating dtype."""
    for name in sorted(wanted.keys() & found.keys()):
        if found[name] != wanted[name] and not (_is_floating(found[name]) and _is_floating(wanted[name])):
            yield f"{name} is stored as {found[name]}, expected {wanted[name]}"


def _is_floating(dtype: str) -> bool:
    return dtype.startswith(("F", "BF"))
