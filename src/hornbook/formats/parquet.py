"""Parquet files as they describe themselves: where a column lies, and what its pages unpack to.

    column chunk:  head | dictionary page | head | data page | head | data page ...   ->   Pages(num_bytes, row_bytes)

A page's head says how long it is once unpacked, and pyarrow takes as much memory as it says: two gigabytes, if it
wants. And some encodings say a value once for many rows. So what a column needs is known before any of it is read. The
footer is read here, too: pyarrow's way to ask it for a column ends the process where it is damaged (pyarrow 26, a level
histogram of the wrong length). The format: https://parquet.apache.org/docs/file-format/ and its parquet.thrift. The
price: a seek and a read for every page.
"""

import os
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from hornbook.errors import DataError
from hornbook.formats.thrift import Reader, Struct
from hornbook.storage.system import format_bytes

_MAGIC: Final = b"PAR1"
_MAX_FOOTER_BYTES: Final = 16 << 20
_HEAD_BYTES: Final = (1 << 10, 64 << 10, 16 << 20)
"""How far to look for the end of a page's head; it may hold the least and the greatest value."""
_DICTIONARY_PAGE: Final = 2
_HEADS: Final = {0: (5, 1, 2), 2: (7, 1, 2), 3: (8, 1, 4)}
"""Of a kind of page, the field that has its own head, and therein those of the number of values and the encoding."""
_DELTA_BYTE_ARRAY: Final = 7
"""The encoding by which a few bytes may stand for a value as long as the page: they refer to the value before."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A column of a row group.

    Attributes:
        num_rows: of the row group; a writer may leave one without any.
        offset, size: where its pages lie in the file, in bytes; without rows they mean nothing.
    """

    num_rows: int
    offset: int
    size: int


def find_chunks(file: BinaryIO, path: str, name: str) -> list[Chunk]:
    """The chunks of a column, a row group each.

    Args:
        file: the file, which is moved about in.
        path: names of the column and those that it is in, with dots between; nothing if there is no such column.
        name: of the file, for errors.

    Raises:
        DataError: this is no Parquet file, or a damaged one, or the column's rows are in other files.
    """
    size = file.seek(0, os.SEEK_END)
    footer = Reader(_footer(file, size, name))
    try:
        groups = [
            (_number(group, 3), chunk)
            for group in _structs(footer.read_struct(), 4)
            for chunk in _structs(group, 1)
            if _path(chunk) == path
        ]
        found = [_chunk(num_rows, chunk, name) for num_rows, chunk in groups]
    except (ValueError, EOFError):
        raise DataError(f"{name}: its footer is damaged; fetch the file again") from None
    if not all(_lies_within(chunk, size) for chunk in found):
        raise DataError(f"{name}: its footer speaks of more than the file has; fetch the file again")
    return found


@dataclass(frozen=True, kw_only=True)
class Pages:
    """What a column of a row group unpacks to.

    Attributes:
        num_bytes: of all its pages.
        row_bytes: n rows in a row have values of n times as many bytes at most, beside the first and the last page.
    """

    num_bytes: int
    row_bytes: int


def measure_pages(file: BinaryIO, chunk: Chunk, name: str, most: int) -> Pages:
    """Read the heads of all pages of a column without lists.

    Args:
        file: the file, which is moved about in.
        chunk: the column.
        name: of the file, for errors.
        most: bytes that a page may unpack to.

    Raises:
        DataError: a head is damaged, or a page is too long, here or unpacked.
    """
    place, end = chunk.offset, chunk.offset + chunk.size
    num_bytes, longest, dictionary = 0, 1, 0
    while place < end:
        try:
            head, length = _read_head(file, place)
            kind, unpacked, packed = (_number(head, field) for field in (1, 2, 3))
            values, encoding = _content(head, kind)
        except (ValueError, EOFError):
            raise DataError(f"{name}: at byte {place} is no head of a page; the file is damaged") from None
        if min(unpacked, packed, values) < 0 or packed > end - place - length:
            raise DataError(f"{name}: the page at byte {place} is longer than its column; the file is damaged")
        if unpacked > most:
            sizes = f"{format_bytes(unpacked)}; write the file with pages of {format_bytes(most)} at most"
            raise DataError(f"{name}: the page at byte {place} unpacks to {sizes}")
        if kind == _DICTIONARY_PAGE:
            dictionary = max(dictionary, unpacked)
        longest = max(longest, dictionary, unpacked if encoding == _DELTA_BYTE_ARRAY else unpacked // max(1, values))
        num_bytes += unpacked
        place += length + packed
    return Pages(num_bytes=num_bytes, row_bytes=longest)


def _footer(file: BinaryIO, size: int, name: str) -> bytes:
    file.seek(max(0, size - 8))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MAGIC or length > size - 8:
        raise DataError(f"{name}: is no Parquet file, or a truncated one; fetch it again, or say what it is by --from")
    if length > _MAX_FOOTER_BYTES:
        raise DataError(f"{name}: its footer has {format_bytes(length)}; write the file with fewer row groups")
    file.seek(size - 8 - length)
    return file.read(length)


def _lies_within(chunk: Chunk, size: int) -> bool:
    """Whether a file of so many bytes has the pages of a chunk, or there are none to have."""
    return chunk.num_rows == 0 or (chunk.num_rows > 0 and 0 < chunk.offset <= chunk.offset + chunk.size <= size)


def _path(chunk: Struct) -> str:
    names = _struct(chunk, 3).get(3)
    parts = [part for part in names if isinstance(part, bytes)] if isinstance(names, list) else []
    return b".".join(parts).decode(errors="replace")


def _chunk(num_rows: int, chunk: Struct, name: str) -> Chunk:
    if 1 in chunk:
        raise DataError(f"{name}: its rows are in other files; name those")
    column = _struct(chunk, 3)
    offset, dictionary = _number(column, 9), column.get(11)
    if isinstance(dictionary, int) and dictionary > 0:
        offset = min(offset, dictionary)
    return Chunk(num_rows=num_rows, offset=offset, size=max(0, _number(column, 7)))


def _read_head(file: BinaryIO, place: int) -> tuple[Struct, int]:
    """The head of a page, and its length."""
    for size in _HEAD_BYTES:
        file.seek(place)
        reader = Reader(file.read(size))
        try:
            return reader.read_struct(), reader.place
        except EOFError:
            if size == _HEAD_BYTES[-1]:
                raise
    raise AssertionError("there is a last size")


def _content(head: Struct, kind: int) -> tuple[int, int]:
    """The number of values in a page, and their encoding."""
    if kind not in _HEADS:
        return 1, 0
    field, values, encoding = _HEADS[kind]
    inner = _struct(head, field)
    return _number(inner, values), _number(inner, encoding)


def _number(fields: Struct, field: int) -> int:
    value = fields.get(field)
    if not isinstance(value, int):
        raise ValueError(f"no number in field {field}")
    return value


def _struct(fields: Any, field: int) -> Struct:
    value = fields.get(field)
    if not isinstance(value, dict):
        raise ValueError(f"no struct in field {field}")
    return value


def _structs(fields: Struct, field: int) -> list[Struct]:
    values = fields.get(field, [])
    if not isinstance(values, list):
        raise ValueError(f"no list in field {field}")
    return [value for value in values if isinstance(value, dict)]
