r"""Protocol buffers: decoding into numbered fields, and the codec of TensorFlow's ``tf.train.Example``.

    b"\x08\x96\x01\x12\x02hi"       field 1: the varint 150, field 2: the bytes "hi"

Every length is checked against the rest of the message before use, there is no recursion, and fields of every wire type
can be skipped. The format: https://protobuf.dev/programming-guides/encoding/

An Example has named lists of integers, floats or byte strings. The order of features is preserved, so decoding and
encoding gives the same bytes. Lists may be packed (the usual form) or not.

    {"input_ids": [5, 300], "weights": [1.0]}
    0a 25                                               features, 37 bytes
       0a 11  0a 09 "input_ids"  12 04 1a 02 ...        an entry of the map: its name and its feature
                                       0a 03 05 ac 02   int64_list, packed: 5 and 300 as varints

The trade-off: numpy takes some 10 us per feature, however short.
"""

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Int64s
from hornbook.errors import DataError

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
LONGEST_VARINT: Final = 10
Feature: TypeAlias = Int64s | NDArray[np.float32] | list[bytes]
"""A one-dimensional int64 or float32 array, or byte strings."""
_AT_ONCE: Final = 1 << 16  # varints; each temporarily takes some 200 bytes
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3


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


def encode_example(features: Mapping[str, Feature]) -> bytes:
    """Return the bytes of an Example, with features in the order of the mapping and packed lists of numbers."""
    entries = (_delimited(1, name.encode()) + _delimited(2, _encode_feature(value)) for name, value in features.items())
    return _delimited(1, b"".join(_delimited(1, entry) for entry in entries))


def decode_example(data: bytes) -> dict[str, Feature]:
    """Return the features of an Example, in order. Raises Malformed if the bytes are not an Example."""
    features: dict[str, Feature] = {}
    for number, message in _messages(data):
        if number == 1:
            for inner, entry in _messages(message):
                if inner == 1:
                    name, feature = _decode_entry(entry)
                    features[name] = feature  # by the format, the last value of a repeated name wins
    return features


def integers(features: Mapping[str, Feature], name: str, where: str) -> Int64s:
    """Return the integers of a feature. Raises DataError, with ``where`` as prefix, if it has none."""
    value = features.get(name)
    if isinstance(value, np.ndarray) and value.dtype == np.int64:
        return value.view(np.int64)
    raise DataError(f"{where}: the feature {name!r} is missing or has no integers; expected a list of int64")


def encode_varints(values: Int64s) -> bytes:
    """Return integers as varints: seven bits per byte, lowest bits first; a negative one takes ten bytes."""
    parts = (values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE))
    return b"".join(map(_encode_some, parts))


def decode_varints(data: bytes) -> Int64s:
    """Return the 64-bit integers of varints. Raises Malformed if one is longer than ten bytes."""
    values = np.frombuffer(data, dtype=np.uint8)
    is_last = values < 0x80
    if is_last.all():
        return values.astype(np.int64)
    ends = np.flatnonzero(is_last) + 1
    if not len(ends) or ends[-1] != len(values):
        raise Malformed("a varint has no end")
    lengths = np.diff(ends, prepend=0)
    if int(lengths.max()) > LONGEST_VARINT:
        raise Malformed(f"a varint has more than {LONGEST_VARINT} bytes")
    numbers = np.empty(len(ends), dtype=np.int64)
    for first in range(0, len(ends), _AT_ONCE):
        some = lengths[first : first + _AT_ONCE]
        start = int(ends[first] - some[0])
        numbers[first : first + _AT_ONCE] = _decode_some(values[start : start + int(some.sum())], some)
    return numbers


def _encode_some(values: Int64s) -> bytes:
    numbers = values.view(np.uint64)
    if int(numbers.max()) < 0x80:
        return numbers.astype(np.uint8).tobytes()
    groups = numbers[:, None] >> np.arange(0, 7 * LONGEST_VARINT, 7, dtype=np.uint64)
    is_used = groups > 0
    is_used[:, 0] = True
    more = np.zeros_like(is_used)
    more[:, :-1] = is_used[:, 1:]
    data = (groups & np.uint64(0x7F)).astype(np.uint8) | more.astype(np.uint8) << np.uint8(7)
    return data[is_used].tobytes()


def _decode_some(values: NDArray[np.uint8], lengths: Int64s) -> Int64s:
    """Return the integers of varints with these lengths in bytes."""
    starts = np.cumsum(lengths) - lengths
    groups = np.arange(len(values)) - np.repeat(starts, lengths)
    parts = (values & np.uint8(0x7F)).astype(np.uint64) << (7 * groups).astype(np.uint64)
    return np.bitwise_or.reduceat(parts, starts).view(np.int64)


def _encode_feature(value: Feature) -> bytes:
    if isinstance(value, list):
        return _delimited(_BYTES_LIST, b"".join(_delimited(1, item) for item in value))
    if value.dtype == np.float32:
        packed, kind = value.astype("<f4").tobytes(), _FLOAT_LIST
    else:
        packed, kind = encode_varints(value.astype(np.int64)), _INT64_LIST
    return _delimited(kind, _delimited(1, packed) if packed else b"")


def _delimited(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | DELIMITED) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    groups = []
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*groups, value))


def _decode_entry(data: bytes) -> tuple[str, Feature]:
    name = b""
    parts: list[bytes] = []
    for number, message in _messages(data):
        if number == 1:
            name = message
        elif number == 2:
            parts.append(message)
    try:
        return name.decode(), _decode_feature(b"".join(parts))  # by the format, repeated messages are merged
    except UnicodeDecodeError:
        raise Malformed("the name of a feature is not UTF-8") from None


def _decode_feature(data: bytes) -> Feature:
    kind = _INT64_LIST
    parts: list[bytes] = []
    for number, message in _messages(data):
        if number in (_BYTES_LIST, _FLOAT_LIST, _INT64_LIST):
            if number != kind:  # by the format, the last one of the three wins
                kind, parts = number, []
            parts.append(message)
    content = b"".join(parts)
    if kind == _BYTES_LIST:
        return [item for number, item in _messages(content) if number == 1]
    if kind == _FLOAT_LIST:
        packed = b"".join(_values(content, FIXED32))
        if len(packed) % 4:
            raise Malformed(f"a list of floats has {len(packed)} bytes")
        return np.frombuffer(packed, dtype="<f4").astype(np.float32)
    return decode_varints(b"".join(_values(content, VARINT)))


def _values(data: bytes, wire: int) -> Iterator[bytes]:
    """Yield the content of a list of numbers in packed form, from packed fields and from fields of single numbers."""
    for number, kind, content in read_fields(data):
        if number == 1:
            if kind not in (wire, DELIMITED):
                raise Malformed(f"a list has values of wire type {kind}")
            yield content


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the fields that are messages, strings or bytes; other fields are skipped."""
    return ((number, content) for number, kind, content in read_fields(data) if kind == DELIMITED)
