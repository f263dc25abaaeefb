"""Write the contents of a checkpoint as one GGUF file.

::

    header, keys, names and offsets of the tensors    written by the library
    tensors, each padded to 32 bytes                  streamed, so that memory holds one copy of the model

Matrices have the dtype that was asked for; vectors and the table of positions are fp32, as llama.cpp needs them.

The tokenizer, byte-level BPE, is translated so that llama.cpp finds the same ids::

    tokenizer.json (vocab, merges, added tokens)    tokenizer.ggml.tokens, token_type, merges
    its pattern                                     tokenizer.ggml.pre: the name of a pattern in llama.cpp
    the end-of-text token                           tokenizer.ggml.bos_token_id, eos_token_id, add_bos_token

As in hornbook, the name of a special token in a text is text there, unless the caller asks for the token
(``parse_special``). Ids of the model that the tokenizer lacks are named ``[PAD300]``.
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
from hornbook.exchange.huggingface.weights import cast_weights
from hornbook.extras import require
from hornbook.model.sparse_layers import dense_weights
from hornbook.text.special_tokens import Settings
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import form_of
from hornbook.version import __version__
from hornbook.wording import counted

_logger = logging.getLogger("hornbook.checkpoint")

_FILE_TYPES: Final = {"fp32": "ALL_F32", "fp16": "MOSTLY_F16", "bf16": "MOSTLY_BF16"}
_TENSOR_TYPES: Final = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""The library's names of the dtypes of files and of tensors."""
_POSITIONS: Final = "position_embd.weight"
_WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_MARKS: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS: Final = {
    (rf"{_WORDS}\p{{N}}{{1,3}}{_MARKS}", True): "llama-bpe",
    (rf"{_WORDS}\p{{N}}{{1,3}}{_MARKS}", False): "dbrx",
    (rf"{_WORDS}\p{{N}}{_MARKS}", False): "qwen2",
}
"""llama.cpp's names of the patterns of Llama 3, GPT-4 and Qwen, by pattern and ``ignore_merges``."""


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


def add_tokenizer(
    writer: Any, tokenizer: Tokenizer, vocab_size: int, *, has_start: bool, warn: Callable[[str], None]
) -> None:
    """Add the keys of a tokenizer to a ``gguf.GGUFWriter``.

    Args:
        writer: the writer.
        tokenizer: byte-level BPE.
        vocab_size: number of ids of the model.
        has_start: whether each text starts with the end-of-text token.
        warn: called for a difference that some texts show.

    Raises:
        CheckpointError: llama.cpp has no such tokenizer.
    """
    from gguf import TokenType

    settings, end = tokenizer.settings, tokenizer.end_of_text_id
    pattern = _pattern(settings)
    merges = [" ".join(pair) for pair in settings["model"].get("merges", ())]
    if any(len(merge.split(" ")) != 2 for merge in merges):
        raise CheckpointError("a merge of the tokenizer contains a blank; llama.cpp cannot represent this tokenizer")
    if end is None:
        raise CheckpointError("the tokenizer has no end-of-text token, which llama.cpp needs to end a text")
    normalizer = settings.get("normalizer")
    if normalizer is not None and normalizer != {"type": "NFC"}:
        raise CheckpointError(
            f"the tokenizer has the normalizer {normalizer.get('type')!r:.40}, which llama.cpp cannot represent"
        )
    if normalizer is not None:
        warn(
            "llama.cpp does not bring texts into Unicode's form NFC, as the tokenizer does; give it texts in this form"
        )
    tokens = [f"[PAD{number}]" for number in range(vocab_size)]
    types = [TokenType.UNUSED] * vocab_size
    for token, number in tokenizer.vocab.items():
        tokens[number], types[number] = token, TokenType.NORMAL
    for token in settings.get("added_tokens") or ():
        types[token["id"]] = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pattern)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(has_start)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    if tokenizer.pad_id is not None:
        writer.add_pad_token_id(tokenizer.pad_id)


def _pattern(settings: Settings) -> str:
    """Return llama.cpp's name of a tokenizer's pattern. Raises CheckpointError if it has no such pattern."""
    if form_of(settings) == "byte-bpe":
        return "gpt-2"
    parts = (settings.get("pre_tokenizer") or {}).get("pretokenizers") or []
    found = None
    if settings["model"].get("type") == "BPE" and [part.get("type") for part in parts] == ["Split", "ByteLevel"]:
        split, level = parts
        is_plain = not split.get("invert") and split.get("behavior") == "Isolated"
        if is_plain and not level.get("use_regex", True) and not level.get("add_prefix_space", True):
            regex = split.get("pattern", {}).get("Regex")
            found = _PATTERNS.get((regex, bool(settings["model"].get("ignore_merges"))))
    if found is None:
        raise CheckpointError(
            "llama.cpp cannot represent this tokenizer; expected byte-level BPE with the pattern of GPT-2, GPT-4, "
            "Llama 3 or Qwen"
        )
    return found
