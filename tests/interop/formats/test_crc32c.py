import random

import pytest

from hornbook.interop.formats.crc32c import crc32c, masked_crc32c


@pytest.mark.parametrize(
    ("data", "crc"),
    [  # RFC 3720, appendix B.4, and the check value of the catalogue of CRCs
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_published_values(data, crc):
    assert crc32c(data) == crc


def test_masked():
    assert masked_crc32c(bytes.fromhex("6c00000000000000")) == int.from_bytes(bytes.fromhex("f5dab0d7"), "little")


def by_bits(data):
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


@pytest.mark.parametrize("length", [*range(40), 1000, *range(1020, 1052), 2048, 2049, 3000, 65536 + 1024, 70001])
def test_any_length_by_another_way(length):
    data = random.Random(length).randbytes(length)
    assert crc32c(data) == by_bits(data) == crc32c(memoryview(data)) == crc32c(bytearray(data))
