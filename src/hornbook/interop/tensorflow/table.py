"""Read LevelDB's sorted tables, in which TensorFlow writes the index of a checkpoint.

::

    blocks of entries, index block, footer          the index block has the location of each block
    footer, 48 bytes                                handles of two blocks, zeros, the magic number
    block                                           entries, restarts u32[n], n u32; kind u8, masked CRC-32C u32
    entry                                           shared, own, size: varints; the key's remaining bytes; the value

A key is the prefix shared with the previous key plus its own bytes. Nothing is trusted: blocks must follow one another,
keys must ascend, and the size and number of keys are limited, since a few bytes could expand to very many. The price:
compressed blocks are not supported; TensorFlow does not write them by default. The format:
https://github.com/google/leveldb/blob/main/doc/table_format.md
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hornbook.interop.formats.crc32c import masked_crc32c
from hornbook.interop.formats.protobuf import Malformed, read_varint
from hornbook.storage.system import open_regular, storage_errors

MOST_ENTRIES: Final = 100_000
LONGEST_KEY: Final = 1024

_MAGIC: Final = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER: Final = 48
_TRAILER: Final = struct.Struct("<BI")


def is_table(path: Path) -> bool:
    """Return whether a file is a table, by its last bytes."""
    with storage_errors("read", path), open_regular(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - len(_MAGIC)))
        return file.read() == _MAGIC


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Return the entries of a table, in the order of their keys.

    Raises Malformed if it is damaged, compressed, or larger than any index of a checkpoint.
    """
    footer = data[-_FOOTER:]
    if len(footer) < _FOOTER or not footer.endswith(_MAGIC):
        raise Malformed("it does not end like a table")
    _, place = _handle(footer, 0)
    index, _ = _handle(footer, place)
    entries: dict[bytes, bytes] = {}
    last, end = None, 0
    for _, handle in _entries(_block(data, *index)):
        (offset, size), _ = _handle(handle, 0)
        if offset < end:
            raise Malformed("its blocks do not follow one another")
        end = offset + size
        for key, value in _entries(_block(data, offset, size)):
            if last is not None and key <= last:
                raise Malformed("its names are not in order")
            if len(entries) == MOST_ENTRIES:
                raise Malformed(f"it has more than {MOST_ENTRIES} names")
            entries[key], last = value, key
    return entries


def _handle(data: bytes, place: int) -> tuple[tuple[int, int], int]:
    """Return offset and size of a block, and the end of the handle."""
    offset, place = read_varint(data, place)
    size, place = read_varint(data, place)
    return (offset, size), place


def _block(data: bytes, offset: int, size: int) -> bytes:
    """Return the entries of a block, without its restarts, which are for lookups of single keys."""
    end = offset + size
    if size < 4 or end + _TRAILER.size > len(data) - _FOOTER:
        raise Malformed("a block is outside the file")
    kind, crc = _TRAILER.unpack_from(data, end)
    if crc != masked_crc32c(data[offset : end + 1]):
        raise Malformed("a block does not match its CRC")
    if kind != 0:
        raise Malformed(f"its blocks are compressed (type {kind}), which is not supported")
    restarts = 4 * (int.from_bytes(data[end - 4 : end], "little") + 1)
    if restarts > size:
        raise Malformed("a block has more restarts than bytes")
    return data[offset : end - restarts]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    place, key = 0, b""
    while place < len(block):
        shared, place = read_varint(block, place)
        own, place = read_varint(block, place)
        size, place = read_varint(block, place)
        if shared > len(key) or place + own + size > len(block):
            raise Malformed("an entry exceeds its block")
        if shared + own > LONGEST_KEY:
            raise Malformed(f"a name has more than {LONGEST_KEY} bytes")
        key = key[:shared] + block[place : place + own]
        place += own + size
        yield key, block[place - size : place]
