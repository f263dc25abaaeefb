r"""Strict, memory-mapped reading of numpy's format, ``.npy``, and helpers for writing it.

    b"\x93NUMPY" 01 00 76 00  {'descr': '<i4', 'fortran_order': False, 'shape': (1165, 128), }  ...items

Headers are parsed here, since numpy raises a dozen different errors for damaged ones. The header is checked against the
size of the file, and object arrays are never unpickled.
"""

import ast
import io
import math
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hornbook.errors import DataError
from hornbook.storage.system import open_regular, storage_errors

_MAGIC: Final = b"\x93NUMPY"
_BYTES_OF_LENGTH: Final = {1: 2, 2: 4, 3: 4}
_MAX_HEADER_BYTES: Final = 4096
_KEYS: Final = {"descr", "fortran_order", "shape"}


class Header(NamedTuple):
    """The header of a ``.npy``.

    Attributes:
        descr: numpy's description of the dtype: a string, or a list of fields.
        fortran_order: whether the items are in column-major order.
        shape: the shape of the array.
        offset: offset of the first item in the file, in bytes.
    """

    descr: object
    fortran_order: bool
    shape: tuple[int, ...]
    offset: int


def read_header(path: Path) -> Header:
    """Read the header of a ``.npy``. Raises DataError if it is another file, or the header is damaged."""
    with storage_errors("read", path), open_regular(path) as file:
        start = file.read(_MAX_HEADER_BYTES)
    width = _BYTES_OF_LENGTH.get(start[len(_MAGIC)] if len(start) > len(_MAGIC) else 0)
    if not start.startswith(_MAGIC) or width is None:
        raise DataError(f"{path}: not a .npy file; check the path, or restore the file")
    begin = len(_MAGIC) + 2 + width
    end = begin + int.from_bytes(start[len(_MAGIC) + 2 : begin], "little")
    if end > len(start):
        raise DataError(f"{path}: the header ends at byte {end}; expected at most {len(start)}: the file is damaged")
    try:
        values = ast.literal_eval(start[begin:end].decode("latin-1").strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        values = None
    if not isinstance(values, dict) or set(values) != _KEYS or type(values["fortran_order"]) is not bool:
        raise DataError(f"{path}: the header is not that of an array; the file is damaged")
    shape = values["shape"]
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise DataError(f"{path}: the shape is {str(shape)[:60]}; expected integers, as in (1165, 128)")
    return Header(values["descr"], values["fortran_order"], shape, end)


def map_items(path: Path, header: Header, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Memory-map the items of a ``.npy`` as ``dtype``, read-only. Raises DataError if the file has another size."""
    count = math.prod(header.shape)
    with storage_errors("read", path):
        size, expected = path.stat().st_size, header.offset + count * dtype.itemsize
        if size != expected:
            raise DataError(
                f"{path}: {size} bytes, but the header expects {expected}; the file is truncated or damaged"
            )
        if not count:
            return np.empty(header.shape, dtype=dtype)
        items = np.asarray(np.memmap(path, dtype=dtype, mode="r", offset=header.offset, shape=(count,)))
    return items.reshape(header.shape, order="F" if header.fortran_order else "C")


def map_array(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Memory-map a ``.npy`` of exactly this dtype, of any shape. Raises DataError if it is damaged, or has another."""
    header = read_header(path)
    if header.descr != np.lib.format.dtype_to_descr(dtype):
        raise DataError(f"{path}: the dtype is {str(header.descr)[:60]!r}; expected {dtype}")
    return map_items(path, header, dtype)


def npy_bytes(array: NDArray[Any]) -> bytes:
    """Return an array as the content of a ``.npy`` file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the header of a ``.npy`` whose items follow in row-major order."""
    file = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(np.empty(0, dtype=dtype))
    np.lib.format.write_array_header_1_0(file, header | {"shape": shape})
    return file.getvalue()
