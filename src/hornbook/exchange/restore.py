"""Restore models from checkpoints; `hornbook.exchange.contents` checks what they contain.

::

    runs/demo | runs/demo/checkpoints/step-00001200 | gpt2/ (Hugging Face) | openai-community/gpt2 (their hub)
    | uncased_L-2_H-128_A-2/bert_model.ckpt (TensorFlow)
      -> read_source -> path and Contents
      -> load_model  -> a model in evaluation mode, its recipe and its tokenizer
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import torch

from hornbook.checkpoint.load import load, require_source, resolve
from hornbook.checkpoint.manifest import MANIFEST
from hornbook.checkpoint.tensors import Contents
from hornbook.config import Recipe, UnknownPart
from hornbook.config.options import show
from hornbook.config.recipe_files import IDENTITY
from hornbook.errors import CheckpointError
from hornbook.exchange.contents import (
    UNTRAINED,
    build_described,
    has_start_token,
    recipe_of,
    refuse_unknown_parts,
    tokenizer_of,
)
from hornbook.model import LanguageModel
from hornbook.model.initialize import fill_unsaved_buffers
from hornbook.parallel.device import compute_dtype
from hornbook.text.hub_client import is_model_name
from hornbook.text.tokenizer import Tokenizer

_logger = logging.getLogger("hornbook.checkpoint")


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A trained model with its recipe and tokenizer."""

    model: LanguageModel
    recipe: Recipe
    tokenizer: Tokenizer | None
    step: int
    path: Path
    has_start_token: bool = True
    """Whether prompts of text start with the end-of-text token, see `hornbook.exchange.contents.has_start_token`."""
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
    if not any((path / name).exists() for name in (MANIFEST, IDENTITY)):
        from hornbook.exchange import huggingface  # 18 modules, which hornbook's own checkpoints do not need

        if not path.exists() and is_model_name(source):
            path = huggingface.fetch(source)
        if huggingface.is_folder(path):
            return path, huggingface.read_folder(path, warn=warn)
    chosen = resolve(path, warn)
    contents = load(chosen, only=only, verified=chosen != path)  # that of a run was verified when it was chosen
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
        untrained=tuple(contents.documents.get(UNTRAINED, ())),
    )
