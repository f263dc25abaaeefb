"""Where each document is from: ``documents.npy``, a row a document, in numpy's own format.

    source  offset  num_bytes
         0       0      5120       the manifest's first source, from its first byte
         1    9341       977       ... the line of a JSONL file that begins after 9,341 bytes (uncompressed)

Anybody's ``np.load`` reads it. The price: exactly one type of row.
"""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hornbook.errors import DataError
from hornbook.formats.npy import map_array

DOCUMENT_ROW: Final = np.dtype([("source", "<i4"), ("offset", "<i8"), ("num_bytes", "<i8")])
"""The number of the source in the manifest's list, the bytes before the document in the uncompressed source (for JSONL,
before its line), and the bytes of its text in UTF-8."""


def read_rows(path: Path, num_documents: int) -> NDArray[np.void]:
    """Map a ``.npy`` of ``DOCUMENT_ROW`` [num_documents].

    Raises:
        DataError: it is anything else.
        StorageError: it cannot be read.
    """
    expected = f"{path}: expected an array of {num_documents} documents' places; build the store again"
    try:
        rows = map_array(path, DOCUMENT_ROW)
    except DataError as error:
        raise DataError(expected) from error
    if rows.shape != (num_documents,):
        raise DataError(expected)
    return rows
