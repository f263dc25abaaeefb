"""The formats in which models are exported, by the names of the option ``format``."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, get_args

from hornbook import storage
from hornbook.checkpoint.tensors import Contents
from hornbook.errors import UserError
from hornbook.exchange.gguf import write_gguf
from hornbook.exchange.huggingface import write_folder
from hornbook.exchange.huggingface.weights import DTYPES

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
        UserError: ``path`` already exists, or an option is not one of the above or has no effect on the format.
        CheckpointError: the format cannot represent the model.
        StorageError: the disk is full, read-only or failing.
    """
    for name, value, known in (("format", format, get_args(ExportFormat)), ("dtype", dtype, tuple(DTYPES))):
        if value not in known:
            raise UserError(f"{name} is {value!r:.80}; expected {' or '.join(known)}")
    if format == "transformers":
        size = SHARD_SIZE if shard_size is None else shard_size
        return write_folder(path, contents, dtype=dtype, source=source, license=license, shard_size=size, warn=warn)
    if shard_size is not None:
        raise UserError("a GGUF file is not split; remove the shard size, or export for transformers")
    return {path.name: write_gguf(path, contents, dtype=dtype, source=source, license=license, warn=warn)}
