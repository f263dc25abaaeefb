r"""The ``.npy`` of system A: an array [sequences, length] of token ids, in numpy's own format.

    b"\x93NUMPY" 01 00 76 00  {'descr': '<i4', 'fortran_order': False, 'shape': (1165, 128), }  ...tokens

Any integer type is read, mapped into memory; int32 is written, which numpy and TensorFlow take as they are. The header
is read by a parser of our own and compared with the size of the file; no object array is ever unpickled. The price: all
sequences have one length, so writing goes over the documents twice, to count them first.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hornbook.data.formats.documents import TOKEN, Documents, TokenDocument, as_tokens
from hornbook.data.formats.tfrecord import buffered
from hornbook.errors import DataError, UserError
from hornbook.storage import replace_file
from hornbook.storage.system import translated

_MAGIC: Final = b"\x93NUMPY"
_INTEGER: Final = re.compile(r"[<>|]([iu])([1248])")
_MAX_HEADER_BYTES: Final = 4096
_KEYS: Final = {"descr", "fortran_order", "shape"}


def read_npy(path: Path) -> Documents:
    """The rows of a ``.npy`` as documents.

    Raises:
        DataError: it is missing, damaged, or no array [sequences, length] of integers; while iterating: an id is none.
        StorageError: it cannot be read.
    """
    array, start = _map(path)

    def read() -> Iterator[TokenDocument]:
        for number, row in enumerate(array):
            tokens = as_tokens(row, f"{path}: row {number}")
            yield TokenDocument(tokens, 0, start + number * array.shape[1] * array.dtype.itemsize)

    return Documents(files=(str(path),), read=read)


def write_npy(path: Path, documents: Documents) -> None:
    """Write documents of one length as int32[documents, length].

    Raises:
        UserError: they are of several lengths, or have no token.
        StorageError: the disk is full, read-only or failing.
    """
    num_rows, length = _count(documents)
    text = f"{{'descr': '{TOKEN.str}', 'fortran_order': False, 'shape': ({num_rows}, {length}), }}"
    padding = -(len(_MAGIC) + 4 + len(text) + 1) % 64
    header = text.encode() + b" " * padding + b"\n"
    prefix = _MAGIC + b"\x01\x00" + len(header).to_bytes(2, "little") + header
    rows = (document.tokens.astype(TOKEN.newbyteorder("<")).tobytes() for document in documents)
    replace_file(path, buffered(chunk for chunks in ((prefix,), rows) for chunk in chunks))


def _count(documents: Documents) -> tuple[int, int]:
    num_rows = length = 0
    for document in documents:
        if num_rows and len(document.tokens) != length:
            raise UserError(
                f"document {num_rows} has {len(document.tokens)} tokens and those before it {length}, but a .npy has "
                "rows of one length; give --sequence-length"
            )
        length = len(document.tokens)
        num_rows += 1
    if not length:
        raise UserError("the documents have no tokens, but a row of a .npy has one at least; give --sequence-length")
    return num_rows, length


def _map(path: Path) -> tuple[NDArray[Any], int]:
    """The array, and where it begins in the file."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; expected a .npy")
    with translated("read", path), path.open("rb") as file:
        start, size = file.read(_MAX_HEADER_BYTES), path.stat().st_size
    header, offset = _header(path, start)
    descr, shape = header.get("descr"), header.get("shape")
    if not isinstance(descr, str) or not _INTEGER.fullmatch(descr):
        raise DataError(f"{path}: its items are of type {str(descr)[:60]!r}; expected integers, as in '<i4'")
    if not isinstance(shape, tuple) or not _is_shape(shape) or type(header["fortran_order"]) is not bool:
        raise DataError(f"{path}: its shape is {str(shape)[:60]}; expected (sequences, tokens of each)")
    dtype: np.dtype[Any] = np.dtype(descr)
    expected = offset + shape[0] * shape[1] * dtype.itemsize
    if size != expected:
        raise DataError(f"{path}: has {size} bytes; expected {expected} by its header: it is truncated or damaged")
    with translated("read", path):
        flat = np.asarray(np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(shape[0] * shape[1],)))
    return flat.reshape(shape, order="F" if header["fortran_order"] else "C"), offset


def _is_shape(value: tuple[object, ...]) -> bool:
    """Two dimensions with something in them: rows without tokens could be any number of rows."""
    return len(value) == 2 and all(type(size) is int and size > 0 for size in value)


def _header(path: Path, start: bytes) -> tuple[dict[str, Any], int]:
    """The values of a header, and where it ends."""
    width = {1: 2, 2: 4, 3: 4}.get(start[len(_MAGIC)] if len(start) > len(_MAGIC) else 0)
    if not start.startswith(_MAGIC) or width is None:
        raise DataError(f"{path}: does not begin as a .npy does; it is another file, or damaged")
    begin = len(_MAGIC) + 2 + width
    end = begin + int.from_bytes(start[len(_MAGIC) + 2 : begin], "little")
    if end > len(start):
        raise DataError(f"{path}: its header ends at byte {end}; expected {len(start)} at most: it is damaged")
    header = _literal(start[begin:end])
    if not isinstance(header, dict) or set(header) != _KEYS:
        raise DataError(f"{path}: its header is not that of an array; the file is damaged")
    return header, end


def _literal(text: bytes) -> object:
    """The value that a Python literal stands for; None where it is none."""
    try:
        return ast.literal_eval(text.decode("latin-1").strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
