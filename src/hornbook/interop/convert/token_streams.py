"""Readers of token streams without document boundaries: the files of nanoGPT and llm.c.

    nanogpt    train.bin    uint16 tokens, little-endian, without a header
    llm.c      train.bin    256 int32: magic, version, number of tokens, zeros; then the tokens
                            20240520, version 1: uint16 (GPT-2)      20240801, version 7: uint32 (Llama 3)

The stream is one document, in which texts may be separated by an end-of-text token. llm.c's header must match the file
size. Raw tokens cannot be distinguished from other bytes, so nanoGPT's format is never detected. The layout of llm.c is
defined in its ``dev/data/data_common.py``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hornbook.errors import DataError
from hornbook.formats.foreign import name_foreign
from hornbook.interop.convert.token_documents import Documents, TokenDocument, as_tokens
from hornbook.storage.system import open_regular, storage_errors

_HEADER: Final = np.dtype(("<i4", (256,)))
_LLMC: Final[dict[tuple[int, int], np.dtype[Any]]] = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
_RAW: Final = np.dtype("<u2")


def read_nanogpt(path: Path) -> Documents:
    """Read raw uint16 tokens as one document. Raises DataError for an odd number of bytes, or another file."""
    if is_llmc(path):
        raise DataError(f"{path}: begins with the header of llm.c; read it with `source_format='llm.c'`")
    if found := name_foreign(path):
        raise DataError(f"{path} is {found}")
    return _stream(path, _RAW, 0, _size(path))


def read_llmc(path: Path) -> Documents:
    """Read a file of llm.c as one document. Raises DataError if its header, size or a token is wrong."""
    header, size = _header(path), _size(path)
    if header is None or (int(header[0]), int(header[1])) not in _LLMC:
        known = " or ".join(f"{magic}, version {version}" for magic, version in _LLMC)
        raise DataError(
            f"{path}: not a token file of llm.c, which begins with {known}; check the path and `source_format`"
        )
    dtype = _LLMC[int(header[0]), int(header[1])]
    expected = _HEADER.itemsize + int(header[2]) * dtype.itemsize
    if size != expected:
        raise DataError(f"{path}: {size} bytes, but the header expects {expected}; the file is truncated or damaged")
    return _stream(path, dtype, _HEADER.itemsize, size)


def is_llmc(path: Path) -> bool:
    """Return whether a file begins with the magic number of llm.c's token files."""
    header = _header(path)
    return header is not None and any(int(header[0]) == magic for magic, _ in _LLMC)


def how_to_convert(path: Path) -> str | None:
    """Return how to convert a file of tokens to a store, or what a file or folder of another project is; else None."""
    if found := name_foreign(path):
        return f"{path} is {found}"
    whole = f"hornbook corpus convert {path} FOLDER --to store --tokenizer TOKENIZER --end-of-text stored"
    split = (
        f"hornbook corpus convert {path} FOLDER --to store --tokenizer TOKENIZER --end-of-text stored "
        "--split-at-end-of-text"
    )
    nanogpt = (
        f"hornbook corpus convert {path} FOLDER --to store --tokenizer TOKENIZER --end-of-text stored "
        "--split-at-end-of-text --from nanogpt"
    )
    if not path.is_file():
        return None
    if is_llmc(path):
        return f"{path} is a token file of llm.c; convert it with `{split}`"
    if path.suffix == ".npy":
        return f"{path} is an array; if it has tokens, convert it with `{whole}`"
    if path.suffix == ".bin":
        return (
            f"{path} has no {path.stem}.idx beside it; if it has raw uint16 tokens, as written by nanoGPT, convert it "
            f"with `{nanogpt}`"
        )
    return None


def _size(path: Path) -> int:
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a file of tokens")
    with storage_errors("read", path):
        return path.stat().st_size


def _header(path: Path) -> NDArray[np.int32] | None:
    if not path.is_file():
        return None
    with storage_errors("read", path), open_regular(path) as file:
        start = file.read(_HEADER.itemsize)
    return np.frombuffer(start, dtype="<i4") if len(start) == _HEADER.itemsize else None


def _stream(path: Path, dtype: np.dtype[Any], offset: int, size: int) -> Documents:
    if (size - offset) % dtype.itemsize:
        raise DataError(
            f"{path}: {size} bytes are not a whole number of {dtype.name} tokens; check the path and `source_format`"
        )

    def read() -> Iterator[TokenDocument]:
        if size > offset:
            with storage_errors("read", path):
                tokens = np.asarray(np.memmap(path, dtype=dtype, mode="r", offset=offset))
            yield TokenDocument(as_tokens(tokens, str(path)), 0, offset)

    return Documents(files=(str(path),), read=read, dtype=dtype)
