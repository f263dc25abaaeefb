r"""TensorFlow's ``tf.train.Example``, a protocol buffer: named lists of integers, of floats or of byte strings.

    {"input_ids": [5, 300], "weights": [1.0]}
    0a 25                                               features, 37 bytes
       0a 11  0a 09 "input_ids"  12 04 1a 02 ...        an entry of the map: its name and its feature
                                       0a 03 05 ac 02   int64_list, packed: 5 and 300 as varints

The order of features is kept, so that what is read and written again has the same bytes. Lists may be packed (as
everybody writes them) or not. Every length is compared with what is left of its message, nothing recurses, and unknown
fields are skipped. The price: numpy costs some 10 us a feature, however short.
"""

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Int64s
from hornbook.errors import DataError
from hornbook.formats.protobuf import DELIMITED, FIXED32, LONGEST_VARINT, VARINT, Malformed, read_fields

Feature: TypeAlias = Int64s | NDArray[np.float32] | list[bytes]
"""An int64 or float32 array of one dimension, or byte strings."""

_AT_ONCE: Final = 1 << 16  # varints; each takes some 200 bytes for a moment
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3


def encode_example(features: Mapping[str, Feature]) -> bytes:
    """The bytes of an Example with its features in the order of the mapping; lists of numbers are packed."""
    entries = (_delimited(1, name.encode()) + _delimited(2, _encode_feature(value)) for name, value in features.items())
    return _delimited(1, b"".join(_delimited(1, entry) for entry in entries))


def decode_example(data: bytes) -> dict[str, Feature]:
    """Return the features of an Example, in the order of their bytes. Raises Malformed if it is none."""
    features: dict[str, Feature] = {}
    for number, message in _messages(data):
        if number == 1:
            for inner, entry in _messages(message):
                if inner == 1:
                    name, feature = _decode_entry(entry)
                    features[name] = feature  # a name that comes again counts anew, says the format
    return features


def integers(features: Mapping[str, Feature], name: str, where: str) -> Int64s:
    """Return the integers of a feature. Raises DataError, which begins with ``where``, if it has none."""
    value = features.get(name)
    if isinstance(value, np.ndarray) and value.dtype == np.int64:
        return value.view(np.int64)
    raise DataError(f"{where}: its feature {name!r} is missing, or has no integers; expected a list of int64")


def encode_varints(values: Int64s) -> bytes:
    """Integers as varints, seven bits a byte, the lowest first; a negative one takes ten bytes."""
    parts = (values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE))
    return b"".join(map(_encode_some, parts))


def decode_varints(data: bytes) -> Int64s:
    """Return the 64-bit integers that varints stand for. Raises Malformed if one does not end within ten bytes."""
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
    """The integers of varints that have ``lengths`` bytes each."""
    starts = np.cumsum(lengths) - lengths
    places = np.arange(len(values)) - np.repeat(starts, lengths)
    parts = (values & np.uint8(0x7F)).astype(np.uint64) << (7 * places).astype(np.uint64)
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
        return name.decode(), _decode_feature(b"".join(parts))  # the format: parts of a message are one message
    except UnicodeDecodeError:
        raise Malformed("the name of a feature is not UTF-8") from None


def _decode_feature(data: bytes) -> Feature:
    kind = _INT64_LIST
    parts: list[bytes] = []
    for number, message in _messages(data):
        if number in (_BYTES_LIST, _FLOAT_LIST, _INT64_LIST):
            if number != kind:  # one of the three, says the format, and the last
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
    """The packed content of a list of numbers; each number that is not packed has a field of its own."""
    for number, kind, content in read_fields(data):
        if number == 1:
            if kind not in (wire, DELIMITED):
                raise Malformed(f"a list has values of wire type {kind}")
            yield content


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of a message's fields that are messages, texts or bytes; others are skipped."""
    return ((number, content) for number, kind, content in read_fields(data) if kind == DELIMITED)
