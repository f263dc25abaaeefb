"""From the contents of a checkpoint to a folder that transformers loads.

::

    gpt2-mine/  config.json  generation_config.json  model.safetensors
                tokenizer.json  vocab.json  merges.txt  tokenizer_config.json

All of it is written into a temporary folder that is then renamed: the folder is whole or not there. The tied head is
left out of the weights, as transformers does itself. The price: one file, however large; the weights are streamed into
it a tensor at a time.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from hornbook.checkpoint.contents import Contents
from hornbook.checkpoint.huggingface.encoders import export_notes
from hornbook.checkpoint.huggingface.families import Family, family_of
from hornbook.checkpoint.huggingface.tokenizer_files import tokenizer_files
from hornbook.checkpoint.tensors import encode
from hornbook.config import (
    ClassificationConfig,
    EncoderConfig,
    Recipe,
    RobertaConfig,
    TransformerConfig,
    recipe_from_dict,
)
from hornbook.errors import CheckpointError, StorageError, UserError
from hornbook.storage import files as storage
from hornbook.storage.json_files import dump_json
from hornbook.text.tokenizer import Tokenizer

_logger = logging.getLogger("hornbook.checkpoint")

DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def write_folder(
    path: Path, contents: Contents, *, dtype: str = "fp32", warn: Callable[[str], None] = _logger.warning
) -> dict[str, storage.Written]:
    """Write a model and its tokenizer as a Hugging Face folder; return size and hash of each file by name.

    Args:
        path: the folder, which must not exist.
        contents: of a checkpoint: the group ``model``, the document ``recipe`` and perhaps ``tokenizer.json``.
        dtype: of the written weights: fp32, bf16 or fp16.
        warn: is told of what is not there as it is here.

    Raises:
        UserError: ``path`` exists already.
        CheckpointError: transformers has no such model, or a weight is too large for fp16.
        StorageError: the disk is full, read-only or failing; the folder is then not there.
    """
    if os.path.lexists(path):
        raise UserError(f"{path} exists already; choose another --output or remove it")
    recipe = recipe_from_dict(contents.documents["recipe"])
    model, tokenizer = recipe.model, _tokenizer(contents)
    family = family_of(model)
    documents = _documents(family, model, tokenizer, dtype)
    documents["config.json"] |= _labels(recipe)
    weights = _cast(family.to_theirs(contents.tensors["model"], model), dtype)
    small = {name: dump_json(value) for name, value in documents.items()}
    small |= tokenizer_files(tokenizer, model.max_positions) if tokenizer else {}
    for note in export_notes(model) if isinstance(model, EncoderConfig) else ():
        warn(note)
    temporary = storage.temporary_beside(path)
    try:
        storage.make_directory(temporary, exist_ok=False)
        encoded = encode(weights, metadata={"format": "pt"})
        written = {"model.safetensors": storage.write_file(temporary / "model.safetensors", encoded.chunks)}
        written |= {name: storage.write_file(temporary / name, data) for name, data in small.items()}
        storage.commit_directory(temporary, path)
    except BaseException:
        with suppress(StorageError):
            storage.remove_tree(temporary)
        raise
    return written


def _tokenizer(contents: Contents) -> Tokenizer | None:
    file = contents.files.get("tokenizer.json")
    return Tokenizer.from_json(file.decode()) if file else None


def _cast(weights: dict[str, Tensor], dtype: str) -> dict[str, Tensor]:
    """Return the weights in another dtype; what was finite and is not any more is refused."""
    cast = {name: tensor.to(DTYPES[dtype]) for name, tensor in weights.items()}
    lost = sorted(name for name, tensor in cast.items() if dtype == "fp16" and not bool(tensor.isfinite().all()))
    if lost:
        raise CheckpointError(f"fp16 ends at 65504, and larger are values of {', '.join(lost)}; export bf16 or fp32")
    return cast


def _documents(
    family: Family, model: TransformerConfig, tokenizer: Tokenizer | None, dtype: str
) -> dict[str, dict[str, Any]]:
    """Return ``config.json``, and ``generation_config.json`` for what writes; no tokenizer, no special tokens."""
    config = family.from_section(model) | {"torch_dtype": str(DTYPES[dtype]).removeprefix("torch.")}
    if isinstance(model, EncoderConfig):
        return {"config.json": config | _padding(model, tokenizer)}
    end_of_text = tokenizer.end_of_text_id if tokenizer else None
    ends = {"bos_token_id": end_of_text, "eos_token_id": end_of_text}
    return {"config.json": config | ends, "generation_config.json": ends}


def _labels(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Return the classes of a model and their numbers; nothing where it tells none."""
    labels = recipe.objective.labels if isinstance(recipe.objective, ClassificationConfig) else ()
    named = {"id2label": {str(number): label for number, label in enumerate(labels)}}
    return named | {"label2id": {label: number for number, label in enumerate(labels)}} if labels else {}


def _padding(model: EncoderConfig, tokenizer: Tokenizer | None) -> dict[str, int | None]:
    """Return the id of the padding token, from which transformers' RoBERTa counts its positions."""
    if tokenizer is None:
        return {}
    if isinstance(model, RobertaConfig) and tokenizer.pad_id != model.first_position - 1:
        raise CheckpointError(
            f"transformers' RoBERTa needs padding to be token {model.first_position - 1}, and the tokenizer's is "
            f"{tokenizer.pad_id}; such a model cannot be exported"
        )
    return {"pad_token_id": tokenizer.pad_id}
