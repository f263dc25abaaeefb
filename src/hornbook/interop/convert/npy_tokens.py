"""Reader and writer of system A's ``.npy``: an array [sequences, length] of token ids in numpy's format.

    {'descr': '<i4', 'fortran_order': False, 'shape': (1165, 128), }  ...tokens

A one-dimensional array is a stream of tokens, read as one document. Reading memory-maps any integer dtype; writing uses
int32, which numpy and TensorFlow can read directly. Writing iterates the documents twice, the first time to count them.
"""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from hornbook.errors import DataError, UserError
from hornbook.formats.npy import map_items, npy_header, read_header
from hornbook.interop.convert.token_documents import TOKEN, Documents, TokenDocument, as_tokens
from hornbook.interop.formats.tfrecord import buffered
from hornbook.storage import replace_file

_INTEGER: Final = re.compile(r"[<>|]([iu])([1248])")


def read_npy(path: Path) -> Documents:
    """Read the rows of a ``.npy``, or a one-dimensional one, as documents. Raises DataError for other content."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a .npy")
    header = read_header(path)
    descr, shape = header.descr, header.shape
    if not isinstance(descr, str) or not _INTEGER.fullmatch(descr):
        raise DataError(f"{path}: the dtype is {str(descr)[:60]!r}; expected integers, such as '<i4'")
    if len(shape) not in (1, 2) or not all(shape):  # a forged header could state any number of empty rows
        raise DataError(f"{path}: the shape is {str(shape)[:60]}; expected (sequences, length) or (tokens,)")
    array = np.atleast_2d(map_items(path, header, np.dtype(descr)))

    def read() -> Iterator[TokenDocument]:
        for number, row in enumerate(array):
            tokens = as_tokens(row, f"{path}: row {number}")
            yield TokenDocument(tokens, 0, header.offset + number * array.shape[1] * array.dtype.itemsize)

    return Documents(files=(str(path),), read=read)


def write_npy(path: Path, documents: Documents) -> None:
    """Write documents of equal length as int32[num_documents, length]. Raises UserError if their lengths differ."""
    num_rows = length = 0
    for document in documents:
        if num_rows and len(document.tokens) != length:
            raise UserError(
                f"document {num_rows} has {len(document.tokens)} tokens and those before it {length}, but the rows of "
                "a .npy have equal lengths; add `sequence_length`"
            )
        length = len(document.tokens)
        num_rows += 1
    if not length:
        raise UserError("the documents have no tokens, but a row of a .npy needs at least one; add `sequence_length`")
    dtype = TOKEN.newbyteorder("<")
    rows = (document.tokens.astype(dtype).tobytes() for document in documents)
    replace_file(path, buffered(chain((npy_header((num_rows, length), dtype),), rows)))
