"""Export checkpoints, or a loaded model with its present weights, in a format by the name of the option ``format``."""

import logging
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, Unpack, get_args

from hornbook import storage
from hornbook.checkpoint.tensors import Contents
from hornbook.config import recipe_to_dict
from hornbook.errors import UserError
from hornbook.exchange.contents import UNTRAINED
from hornbook.exchange.gguf import write_gguf
from hornbook.exchange.huggingface import write_folder
from hornbook.exchange.huggingface.weights import DTYPES
from hornbook.exchange.restore import LoadedModel, read_source
from hornbook.extras import require
from hornbook.storage.json_files import read_json

_logger = logging.getLogger("hornbook.checkpoint")

ExportFormat = Literal["transformers", "gguf"]
SHARD_SIZE: Final = 5e9
"""Bytes of the largest file of weights in a folder, unless another size is given."""


def export(
    path: Path,
    contents: Contents,
    *,
    format: str = "transformers",  # noqa: A002 - the option's name
    dtype: str = "fp32",
    source: Path | None = None,
    license: str | None = None,  # noqa: A002 - the option's name
    shard_size: float | None = None,
    warn: Callable[[str], None] = _logger.warning,
) -> dict[str, storage.Written]:
    """Write a model and its tokenizer in a format; return size and hash of each file by name.

    Args:
        path: the new folder or, for ``gguf``, the new file.
        contents: contents of a checkpoint, see ``write_folder`` and ``write_gguf``.
        format: transformers or gguf.
        dtype: dtype of the weights: fp32, bf16 or fp16.
        source: the checkpoint on disk.
        license: identifier of the license, such as apache-2.0.
        shard_size: bytes of the largest file of weights in a folder; None for ``SHARD_SIZE``.
        warn: called for differences between the model and the export.

    Raises:
        UserError: ``path`` already exists or has the suffix of another format, or an option is not one of the above or
            has no effect on the format.
        CheckpointError: the format cannot represent the model.
        StorageError: the disk is full, read-only or failing.
    """
    for name, value, known in (("format", format, get_args(ExportFormat)), ("dtype", dtype, tuple(DTYPES))):
        if value not in known:
            raise UserError(f"{name} is {value!r:.80}; expected {' or '.join(known)}")
    if format == "transformers":
        if path.suffix == ".gguf":
            raise UserError(
                f"{path} has the suffix of a GGUF file, but `format='transformers'` writes a folder; use "
                "`format='gguf'`, or choose another name"
            )
        size = SHARD_SIZE if shard_size is None else shard_size
        return write_folder(path, contents, dtype=dtype, source=source, license=license, shard_size=size, warn=warn)
    if shard_size is not None:
        raise UserError("a GGUF file is not split; remove the shard size, or export for transformers")
    return {path.name: write_gguf(path, contents, dtype=dtype, source=source, license=license, warn=warn)}


class ExportOptions(TypedDict, total=False):
    """The options of `hornbook.Model.export`; see there."""

    format: ExportFormat
    dtype: Literal["fp32", "bf16", "fp16"]
    license: str | None
    shard_size: float | None


def export_loaded(loaded: LoadedModel, path: Path, **options: Unpack[ExportOptions]) -> list[Path]:
    """Write a model as `export` does, with the documents of its source; return the files."""
    _, stored = read_source(loaded.path, only={"model"})
    contents = replace(stored, tensors={"model": loaded.model.saved_tensors()})
    files = export(path, contents, source=loaded.path, **options)
    return [path] if options.get("format") == "gguf" else [path / name for name in files]


def to_transformers(loaded: LoadedModel) -> Any:
    """Return a copy of the model as a transformers model, on the CPU; see `hornbook.Model.to_transformers`."""
    transformers = require("transformers", extra="transformers", purpose="to_transformers")
    contents = Contents(
        step=loaded.step,
        tensors={"model": loaded.model.saved_tensors()},
        documents={"recipe": recipe_to_dict(loaded.recipe), UNTRAINED: list(loaded.untrained)},
        files={"tokenizer.json": loaded.tokenizer.to_json().encode()} if loaded.tokenizer else {},
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        write_folder(folder, contents)
        (architecture,) = read_json(folder / "config.json", "the configuration")["architectures"]
        return getattr(transformers, architecture).from_pretrained(folder)
