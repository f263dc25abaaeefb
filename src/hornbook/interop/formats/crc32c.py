"""CRC-32C (Castagnoli), used in TFRecord, LevelDB and iSCSI, computed with numpy, a thousand bytes at a time.

    crc32c(b"123456789")          0xE3069283                        RFC 3720, appendix B.4
    masked_crc32c(b"...")         ((crc >> 15 | crc << 17) + 0xA282EAD8) mod 2**32           as stored in TFRecord

Without its two complements, a CRC is linear over XOR: that of a block is the XOR of the contribution of each byte
followed by zeros. A table has the contribution of each byte value v with n bytes after it, so a block is one lookup and
one reduction in numpy, and the previous state enters through the first four bytes of the next block.
"""

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL: Final = 0x82F63B78  # 0x1EDC6F41 with its bits reversed
_MASK_DELTA: Final = 0xA282EAD8
_ONES: Final = 0xFFFFFFFF
_BLOCK: Final = 1024
_BLOCKS_AT_ONCE: Final = 64
_ROWS: Final = np.arange(_BLOCK, dtype=np.intp) * 256
"""Start of each row of ``_table``."""
_FEW: Final = 24  # below this, a Python loop is faster than numpy


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C of bytes, from 0 to 2**32 - 1."""
    values = np.frombuffer(data, dtype=np.uint8)
    head = len(values) % _BLOCK
    if head < _FEW:
        table, state = _byte_table(), _ONES
        for value in values[:head].tolist():
            state = table[(state ^ value) & 0xFF] ^ (state >> 8)
    else:
        state = _ones_through(head) ^ int(np.bitwise_xor.reduce(_table().take(values[:head] + _ROWS[-head:])))
    for start in range(head, len(values), _BLOCK * _BLOCKS_AT_ONCE):
        blocks = values[start : start + _BLOCK * _BLOCKS_AT_ONCE].reshape(-1, _BLOCK)
        first, second, third, fourth = _first_rows()
        for contribution in np.bitwise_xor.reduce(_table().take(blocks + _ROWS), axis=1).tolist():
            # the state is equivalent to its four bytes at the beginning of the block
            passed = first[state & 0xFF] ^ second[state >> 8 & 0xFF] ^ third[state >> 16 & 0xFF] ^ fourth[state >> 24]
            state = passed ^ contribution
    return state ^ _ONES


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C as masked in TFRecord, since the CRC of data that contain their own CRC is degenerate."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ONES


@cache
def _ones_through(length: int) -> int:
    """Return the initial state after ``length`` zero bytes, 4 or more."""
    return int(np.bitwise_xor.reduce(_table()[_ROWS[-length:][:4] + 0xFF]))


@cache
def _byte_table() -> list[int]:
    """Return the contribution of the last byte, by its value."""
    states = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        states = np.where(states & 1, states >> 1 ^ np.uint32(_POLYNOMIAL), states >> 1)
    numbers: list[int] = states.tolist()
    return numbers


@cache
def _table() -> NDArray[np.uint32]:
    """Return uint32[_BLOCK * 256]: at 256 * n + v, the contribution of value v with _BLOCK - 1 - n bytes after it."""
    last = np.array(_byte_table(), dtype=np.uint32)
    table = np.empty((_BLOCK, 256), dtype=np.uint32)
    table[-1] = last
    for row in range(_BLOCK - 2, -1, -1):
        table[row] = table[row + 1] >> 8 ^ last[table[row + 1] & 0xFF]
    return table.ravel()


@cache
def _first_rows() -> list[list[int]]:
    rows: list[list[int]] = _table().reshape(_BLOCK, 256)[:4].tolist()
    return rows
