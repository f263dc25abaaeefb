r"""Protocol buffers, as far as files go that others wrote: bytes to numbered fields; what they mean is the caller's.

    b"\x08\x96\x01\x12\x02hi"       field 1: the varint 150, field 2: the bytes "hi"

Every length is compared with what is left of its message before it is used, nothing recurses, and every kind of field
can be skipped. The format: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator
from typing import Final

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
LONGEST_VARINT: Final = 10


class Malformed(Exception):  # noqa: N818 - the reader of the file makes an error of it
    """Bytes are not what they should be; the reader, which knows where they are from, makes its error of it."""


def read_fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, wire type and content of each field; of a varint, its bytes. Raises Malformed."""
    place = 0
    while place < len(data):
        key, place = read_varint(data, place)
        number, kind = key >> 3, key & 7
        if not number:
            raise Malformed("a field has no number")
        start = place
        if kind == DELIMITED:
            length, start = read_varint(data, place)
            place = start + length
        elif kind == VARINT:
            place = read_varint(data, place)[1]
        elif kind in (FIXED64, FIXED32):
            place += 8 if kind == FIXED64 else 4
        else:
            raise Malformed(f"a field has wire type {kind}")
        if place > len(data):
            raise Malformed(f"a field has {place - start} bytes where {len(data) - start} are left")
        yield number, kind, data[start:place]


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """The varint at ``place``, and where it ends. Raises Malformed if it has no end, or more than ten bytes."""
    value = 0
    for group, byte in enumerate(data[place : place + LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * group
        if byte < 0x80:
            return value, place + group + 1
    raise Malformed("a varint has no end, or more than ten bytes")
