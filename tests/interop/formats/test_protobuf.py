import random

import pytest
from damage import mutated

from hornbook.interop.formats.protobuf import DELIMITED, FIXED32, FIXED64, VARINT, Malformed, read_fields, read_varint

MESSAGE = b"\x08\x96\x01" + b"\x12\x02hi" + b"\x35\x01\x02\x03\x04" + b"\x39" + bytes(8) + b"\xfa\x01\x00"


def test_fields_of_every_kind():
    assert list(read_fields(MESSAGE)) == [
        (1, VARINT, b"\x96\x01"),
        (2, DELIMITED, b"hi"),
        (6, FIXED32, b"\x01\x02\x03\x04"),
        (7, FIXED64, bytes(8)),
        (31, DELIMITED, b""),
    ]
    assert list(read_fields(b"")) == []


@pytest.mark.parametrize(
    ("data", "value", "end"),
    [(b"\x00", 0, 1), (b"\x7f", 127, 1), (b"\x96\x01", 150, 2), (b"\xff" * 9 + b"\x01", 2**64 - 1, 10)],
)
def test_varints(data, value, end):
    assert read_varint(data + b"rest", 0) == (value, end)
    assert read_varint(b"xx" + data, 2) == (value, end + 2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x00", "a field has no number"),
        (b"\x0b", "wire type 3"),
        (b"\x08", "a varint has no end"),
        (b"\xff" * 11, "more than ten bytes"),
        (b"\x12\x03hi", "3 bytes where 2 are left"),
        (b"\x12" + b"\xff" * 9 + b"\x01", "bytes where 0 are left"),
        (b"\x35\x01", "4 bytes where 1 are left"),
    ],
)
def test_what_is_no_message(data, message):
    with pytest.raises(Malformed, match=message):
        list(read_fields(data))


def test_any_bytes_are_fields_or_malformed():
    draws = random.Random(1)
    refused = 0
    for data in (*mutated(MESSAGE, 1000, 2), *(draws.randbytes(draws.randrange(40)) for _ in range(1000))):
        try:
            assert sum(len(content) for _, _, content in read_fields(data)) <= len(data)
        except Malformed:
            refused += 1
    assert refused > 1000
