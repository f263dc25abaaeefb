"""Where each document is from: ``documents.npy``, a row a document, in numpy's own format.

    source  offset  num_bytes
         0       0      5120       the manifest's first source, from its first byte
         1    9341       977       ... the line of a JSONL file that begins after 9,341 bytes (uncompressed)

Anybody's ``np.load`` reads it. We read it with a parser of our own: numpy's takes a damaged header for Python source of
1999 and fails in a dozen ways. The price: twenty lines, and exactly one type of row.
"""

import ast
import io
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hornbook.errors import DataError
from hornbook.storage.system import translated

DOCUMENT_ROW: Final = np.dtype([("source", "<i4"), ("offset", "<i8"), ("num_bytes", "<i8")])
"""The number of the source in the manifest's list, the bytes before the document in the uncompressed source (for JSONL,
before its line), and the bytes of its text in UTF-8."""

_MAGIC: Final = b"\x93NUMPY\x01\x00"
_MAX_HEADER_BYTES: Final = 1024


def npy_bytes(rows: NDArray[Any]) -> bytes:
    """The content of a ``.npy`` file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, rows, allow_pickle=False)
    return file.getvalue()


def npy_header(num_documents: int) -> bytes:
    """What the ``.npy`` of so many rows begins with."""
    file = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(np.empty(0, dtype=DOCUMENT_ROW))
    np.lib.format.write_array_header_1_0(file, header | {"shape": (num_documents,)})
    return file.getvalue()


def read_rows(path: Path, num_documents: int) -> NDArray[np.void]:
    """Map a ``.npy`` of ``DOCUMENT_ROW`` [num_documents].

    Raises:
        DataError: it is anything else.
        StorageError: it cannot be read.
    """
    with translated("read", path), path.open("rb") as file:
        start = file.read(len(_MAGIC) + 2 + _MAX_HEADER_BYTES)
    length = int.from_bytes(start[len(_MAGIC) : len(_MAGIC) + 2], "little")
    offset = len(_MAGIC) + 2 + length
    header = start[len(_MAGIC) + 2 : offset]
    expected = {"descr": DOCUMENT_ROW.descr, "fortran_order": False, "shape": (num_documents,)}
    size = offset + num_documents * DOCUMENT_ROW.itemsize
    if not start.startswith(_MAGIC) or _literal(header) != expected or path.stat().st_size != size:
        raise DataError(f"{path}: expected an array of {num_documents} documents' places; build the store again")
    rows = np.memmap(path, dtype=DOCUMENT_ROW, mode="r", offset=offset, shape=(num_documents,))
    return np.asarray(rows)


def _literal(header: bytes) -> object:
    """The value that a Python literal stands for; None where it is none."""
    try:
        return ast.literal_eval(header.decode("latin-1").strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
