"""Export the contents of a checkpoint as a folder that transformers loads.

::

    gpt2-mine/  config.json  generation_config.json  model.safetensors
                tokenizer.json  vocab.json  merges.txt  tokenizer_config.json  README.md (the model card)
    llama-mine/ ...  model.safetensors.index.json  model-00001-of-00002.safetensors  model-00002-of-00002.safetensors

All files are written into a temporary folder that is then renamed: the folder is either complete or absent. The tied
head is left out of the weights, as in transformers. Weights are streamed into their file one tensor at a time.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hornbook import storage
from hornbook.checkpoint.tensors import Contents, encode
from hornbook.config import ClassificationConfig, EncoderConfig, GPTConfig, Recipe, RobertaConfig, TransformerConfig
from hornbook.errors import CheckpointError, StorageError, UserError
from hornbook.exchange.contents import UNTRAINED, build_described, has_start_token, recipe_of, tokenizer_of
from hornbook.exchange.huggingface.encoders import BIASES, EncoderFamily
from hornbook.exchange.huggingface.families import Family, family_of
from hornbook.exchange.huggingface.model_card import MODEL_CARD, Card, model_card
from hornbook.exchange.huggingface.tokenizer_files import tokenizer_files
from hornbook.exchange.huggingface.weights import DTYPES, SAFE_FILES, cast_weights, index_of, split_weights
from hornbook.model.sparse_layers import dense_weights
from hornbook.storage.json_files import dump_json
from hornbook.text.tokenizer import Tokenizer

_logger = logging.getLogger("hornbook.checkpoint")


def write_folder(
    path: Path,
    contents: Contents,
    *,
    dtype: str = "fp32",
    source: Path | None = None,
    license: str | None = None,  # noqa: A002 - the option's name
    shard_size: float = 5e9,
    warn: Callable[[str], None] = _logger.warning,
) -> dict[str, storage.Written]:
    """Write a model and its tokenizer as a Hugging Face folder; return size and hash of each file by name.

    Args:
        path: the folder, which must not exist.
        contents: contents of a checkpoint: the group ``model``, the document ``recipe``, maybe ``tokenizer.json``.
        dtype: dtype of the written weights: fp32, bf16 or fp16.
        source: the checkpoint on disk, for the numbers of its run in the model card, and for errors.
        license: identifier of the license for the model card, such as apache-2.0; None leaves a line to fill.
        shard_size: bytes of the largest file of weights, unless one tensor is larger; a model that is larger is written
            as several files and their index.
        warn: called for differences between the model and the export, and for numbers that cannot be read.

    Raises:
        UserError: ``path`` already exists.
        CheckpointError: transformers cannot represent the model, or a weight is too large for fp16.
        StorageError: the disk is full, read-only or failing; the folder is then not created.
    """
    if os.path.lexists(path):
        raise UserError(f"{path} exists already; choose another `output` or remove it")
    what = "the checkpoint" if source is None else str(source)
    recipe, tokenizer = recipe_of(contents, what), tokenizer_of(contents, what)
    model = recipe.model
    family = family_of(model)
    here, contents = build_described(contents, recipe, what, torch.float32)
    documents = _documents(family, model, tokenizer, dtype)
    documents["config.json"] |= _labels(recipe)
    theirs = family.to_theirs(dense_weights(contents.tensors["model"], here), model)
    if isinstance(family, EncoderFamily):
        assert isinstance(model, EncoderConfig), "the family is that of the model"
        theirs, architecture, left_out = family.without_untrained(theirs, model, contents.documents.get(UNTRAINED, ()))
        documents["config.json"]["architectures"] = [architecture]
        for note in _notes(model, left_out, objective=recipe.objective.name, step=contents.step):
            warn(note)
    weights = cast_weights(theirs, dtype)
    small = {name: dump_json(value) for name, value in documents.items()}
    if tokenizer:
        generates = "generation_config.json" in documents
        has_start = generates and has_start_token(contents)
        small |= tokenizer_files(tokenizer, model.max_positions, generates=generates, has_start=has_start)
    kind = documents["config.json"]["architectures"][0]
    card = Card(title=path.name, architecture=kind, source=source, license=license, warn=warn)
    files = split_weights(weights, shard_size)
    if len(files) > 1:
        small[SAFE_FILES[1]] = dump_json(index_of(files))
    return _write(path, files, small | {MODEL_CARD: model_card(card, contents).encode()})


def _write(
    path: Path, files: Mapping[str, Mapping[str, Tensor]], small: Mapping[str, bytes]
) -> dict[str, storage.Written]:
    """Write the folder, all of it or nothing."""
    temporary = storage.temporary_beside(path)
    try:
        storage.make_directory(temporary, exist_ok=False)
        written = {
            name: storage.write_file(temporary / name, encode(weights, metadata={"format": "pt"}).chunks)
            for name, weights in files.items()
        }
        written |= {name: storage.write_file(temporary / name, data) for name, data in small.items()}
        storage.commit_directory(temporary, path)
    except BaseException:
        with suppress(StorageError):
            storage.remove_tree(temporary)
        raise
    return written


def _documents(
    family: Family, model: TransformerConfig, tokenizer: Tokenizer | None, dtype: str
) -> dict[str, dict[str, Any]]:
    """Return ``config.json`` and, for generation, ``generation_config.json``; special tokens need a tokenizer."""
    config = family.from_section(model) | {"torch_dtype": str(DTYPES[dtype]).removeprefix("torch.")}
    if isinstance(model, EncoderConfig):
        return {"config.json": config | _padding(model, tokenizer)}
    end_of_text = tokenizer.end_of_text_id if tokenizer else None
    ends = {"bos_token_id": end_of_text, "eos_token_id": end_of_text}
    if isinstance(model, GPTConfig) and model.head == "classification":
        return {"config.json": config | ends | {"pad_token_id": _last_in_no_text(tokenizer)}}
    generation: dict[str, Any] = ends | {"pad_token_id": end_of_text}
    if tokenizer and model.vocab_size and tokenizer.vocab_size < model.vocab_size:
        generation["suppress_tokens"] = list(range(tokenizer.vocab_size, model.vocab_size))  # hornbook chooses none
    return {"config.json": config | ends, "generation_config.json": generation}


def _last_in_no_text(tokenizer: Tokenizer | None) -> int | None:
    """Return the id that transformers' GPT-2 skips to find a text's last token: padding or end-of-text."""
    if tokenizer is None:
        return None
    return tokenizer.end_of_text_id if tokenizer.pad_id is None else tokenizer.pad_id


def _labels(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Return the classes of a model and their numbers; empty if it has none."""
    labels = recipe.objective.labels if isinstance(recipe.objective, ClassificationConfig) else ()
    named = {"id2label": {str(number): label for number, label in enumerate(labels)}}
    return named | {"label2id": {label: number for number, label in enumerate(labels)}} if labels else {}


def _padding(model: EncoderConfig, tokenizer: Tokenizer | None) -> dict[str, int | None]:
    """Return the id of the padding token, from which transformers' RoBERTa counts its positions."""
    if tokenizer is None:
        return {}
    if isinstance(model, RobertaConfig) and tokenizer.pad_id != model.first_position - 1:
        raise CheckpointError(
            f"transformers' RoBERTa needs padding to be token {model.first_position - 1}, but the tokenizer's is "
            f"{tokenizer.pad_id}; this model cannot be exported"
        )
    return {"pad_token_id": tokenizer.pad_id}


def _notes(config: EncoderConfig, left_out: list[str], *, objective: str, step: int) -> Iterator[str]:
    """Yield the differences between a model and its export, and the untrained parts of its head.

    Args:
        config: the model.
        left_out: parts of its head that are not exported, since they were never trained.
        objective: the model's objective.
        step: number of training steps; 0 for an imported model.
    """
    if config.embedding_dropout != config.residual_dropout:
        yield (
            f"model.embedding_dropout {config.embedding_dropout:g} is lost: transformers has one hidden_dropout_prob, "
            f"and model.residual_dropout {config.residual_dropout:g} is written to it"
        )
    if absent := [f"model.{name}" for name in BIASES if not getattr(config, name)]:
        yield f"{', '.join(absent)} off: transformers has these biases, so they are written as zeros"
    if left_out:
        yield f"left out, since it was never trained: the head for {', '.join(left_out)}"
    elif step and objective == "mlm" and config.head == "pretraining" and config.has_pair_head:
        yield (
            "the head for pairs of texts and its pooler are exported, although the objective mlm does not train them"
        )
