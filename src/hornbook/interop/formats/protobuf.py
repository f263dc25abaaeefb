r"""Decoding of protocol buffers into numbered fields, whose meaning the caller knows.

    b"\x08\x96\x01\x12\x02hi"       field 1: the varint 150, field 2: the bytes "hi"

Every length is checked against the rest of the message before use, there is no recursion, and fields of every wire type
can be skipped. The format: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator
from typing import Final

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
LONGEST_VARINT: Final = 10


class Malformed(Exception):  # noqa: N818 - converted to an error that names the file
    """The bytes are malformed; the reader, which knows the file, converts this to its error."""


def read_fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, wire type and content of each field; the content of a varint is its bytes. Raises Malformed."""
    position = 0
    while position < len(data):
        key, position = read_varint(data, position)
        number, kind = key >> 3, key & 7
        if not number:
            raise Malformed("a field has no number")
        start = position
        if kind == DELIMITED:
            length, start = read_varint(data, position)
            position = start + length
        elif kind == VARINT:
            position = read_varint(data, position)[1]
        elif kind in (FIXED64, FIXED32):
            position += 8 if kind == FIXED64 else 4
        else:
            raise Malformed(f"a field has wire type {kind}")
        if position > len(data):
            raise Malformed(f"a field has {position - start} bytes where {len(data) - start} are left")
        yield number, kind, data[start:position]


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at ``position`` and the position after it. Raises Malformed if it is longer than ten bytes."""
    value = 0
    for group, byte in enumerate(data[position : position + LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * group
        if byte < 0x80:
            return value, position + group + 1
    raise Malformed("a varint has no end, or more than ten bytes")
