"""Write the contents of a checkpoint as one GGUF file.

::

    header, keys, names and offsets of the tensors    written by the library
    tensors, each padded to 32 bytes                  streamed, so that memory holds one copy of the model

Matrices have the dtype that was asked for; vectors and the table of positions are fp32, as llama.cpp needs them.
"""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from hornbook import storage
from hornbook.checkpoint.tensors import Contents
from hornbook.errors import CheckpointError, UserError
from hornbook.exchange.contents import build_described, has_start_token, recipe_of, tokenizer_of
from hornbook.exchange.gguf.architectures import add_sizes, architecture_of, tensors_of
from hornbook.exchange.gguf.vocabulary import add_tokenizer
from hornbook.exchange.huggingface.weights import cast_weights
from hornbook.extras import require
from hornbook.model.sparse_layers import dense_weights
from hornbook.version import __version__
from hornbook.wording import counted

_logger = logging.getLogger("hornbook.checkpoint")

_FILE_TYPES: Final = {"fp32": "ALL_F32", "fp16": "MOSTLY_F16", "bf16": "MOSTLY_BF16"}
_TENSOR_TYPES: Final = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""The library's names of the dtypes of files and of tensors."""
_POSITIONS: Final = "position_embd.weight"


def write_gguf(
    path: Path,
    contents: Contents,
    *,
    dtype: str = "fp32",
    source: Path | None = None,
    license: str | None = None,  # noqa: A002 - the option's name
    warn: Callable[[str], None] = _logger.warning,
) -> storage.Written:
    """Write a model and its tokenizer as a GGUF file; return its size and hash.

    Args:
        path: the file, which must not exist; its folder is created.
        contents: contents of a checkpoint: the group ``model``, the document ``recipe``, ``tokenizer.json``.
        dtype: dtype of the matrices: fp32, bf16 or fp16.
        source: the checkpoint on disk, for errors.
        license: identifier of the license for the file, such as apache-2.0.
        warn: called for differences between the model and the export.

    Raises:
        UserError: ``path`` already exists, or the library ``gguf`` is not installed.
        CheckpointError: llama.cpp cannot represent the model or its tokenizer, or a weight is too large for fp16.
        StorageError: the disk is full, read-only or failing; the file is then not created.
    """
    gguf = require("gguf", extra="gguf", purpose="exporting GGUF")
    if os.path.lexists(path):
        raise UserError(f"{path} exists already; choose another `output` or remove it")
    what = "the checkpoint" if source is None else str(source)
    recipe, tokenizer = recipe_of(contents, what), tokenizer_of(contents, what)
    config = recipe.model
    architecture, family = architecture_of(config)
    if tokenizer is None:
        raise CheckpointError(f"{what} has no tokenizer, which a GGUF file contains; export it for transformers")
    here, contents = build_described(contents, recipe, what, torch.float32)
    weights = dense_weights(contents.tensors["model"], here)
    tensors = dict(tensors_of(config, architecture, family, weights))
    matrices = {name: tensor for name, tensor in tensors.items() if tensor.dim() > 1 and name != _POSITIONS}
    tensors = {name: tensor.float() for name, tensor in tensors.items()} | cast_weights(matrices, dtype)
    writer = gguf.GGUFWriter(None, architecture.name)
    writer.add_name(path.stem)
    writer.add_description(f"Exported after {counted(contents.step, 'step')} by hornbook {__version__}")
    if license:
        writer.add_license(license)
    writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[dtype]])
    add_sizes(writer, config)
    vocab_size = config.vocab_size
    assert vocab_size is not None, "a model with weights has a vocabulary"
    add_tokenizer(writer, tokenizer, vocab_size, has_start=has_start_token(contents), warn=warn)
    header = _header(gguf, writer, tensors)
    storage.make_directory(path.parent)
    return storage.replace_file(path, _chunks(header, tensors, writer.data_alignment))


def _header(gguf: Any, writer: Any, tensors: Mapping[str, Tensor]) -> bytes:
    """Return all that precedes the tensors, without the padding."""
    for name, tensor in tensors.items():
        kind = gguf.GGMLQuantizationType[_TENSOR_TYPES[tensor.dtype]]
        writer.add_tensor_info(name, tuple(tensor.shape), np.dtype(np.float32), tensor.nbytes, raw_dtype=kind)
    with tempfile.TemporaryDirectory() as temporary:  # the library writes to files only
        path = Path(temporary) / "header"
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        return path.read_bytes()


def _chunks(header: bytes, tensors: Mapping[str, Tensor], alignment: int) -> Iterator[storage.BytesLike]:
    """Yield the content of the file, each tensor in row-major order."""
    yield header
    yield bytes(-len(header) % alignment)
    for tensor in tensors.values():
        data: memoryview = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
        yield data
        yield bytes(-data.nbytes % alignment)
