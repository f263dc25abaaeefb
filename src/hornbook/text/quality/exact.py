r"""Exact duplicates: of documents that are equal except for white space, keep the first.

    "Call me\r\nIshmael. "   ->  "Call me Ishmael. "  ->  hash of 127 bits  ->  seen before?

A run of white space equals a blank; leading and trailing white space is ignored. Memory: 21 to 43 bytes per document, a
Python set would take a hundred. The probability that two of a billion different texts have the same hash is 1e-20.
"""

import re
from array import array
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hornbook.text.quality.words import text_blocks
from hornbook.text.reading import Document

_BLANK: Final = re.compile(r"\s")
_SMALLEST_TABLE: Final = 1024


class ExactDuplicates:
    """A filter that drops documents that equal an earlier one."""

    name = "exact duplicates"

    def __init__(self) -> None:
        self._seen = SeenPairs()
        self._new = array("Q")

    def keeps(self, document: Document) -> bool:
        """Return whether the text is new."""
        low, high = text_hash(document.text)
        is_new = self._seen.add(low, high)
        if is_new:
            self._new.extend((low, high))
        return is_new

    def new_memory(self) -> NDArray[np.uint64]:
        """Return the hashes of the new texts since the last call, uint64 [n, 2]."""
        memory = np.array(self._new, dtype=np.uint64).reshape(-1, 2)
        self._new = array("Q")
        return memory

    def remember(self, memory: NDArray[np.uint64]) -> None:
        """Restore hashes from ``new_memory``, uint64 [n, 2]."""
        for low, high in memory.tolist():
            self._seen.add(low, high)


def text_hash(text: str) -> tuple[int, int]:
    """Return a hash of a text, ignoring white space differences, as two 64-bit integers, the second one odd."""
    hasher = blake2b(digest_size=16)
    for block in text_blocks(text, _BLANK):
        hasher.update("".join(f"{word} " for word in block.split()).encode())
    digest = hasher.digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1


class SeenPairs:
    """A set of pairs of 64-bit integers, the second one not 0: an open-addressing table with linear probing."""

    def __init__(self) -> None:
        self._size, self._count = _SMALLEST_TABLE, 0
        self._table = array("Q", bytes(16 * self._size))

    def __len__(self) -> int:
        return self._count

    def add(self, low: int, high: int) -> bool:
        """Add a pair and return whether it is new."""
        table, slot = self._table, low & (self._size - 1)
        while found := table[2 * slot + 1]:
            if found == high and table[2 * slot] == low:
                return False
            slot = (slot + 1) & (self._size - 1)
        table[2 * slot], table[2 * slot + 1] = low, high
        self._count += 1
        if 4 * self._count > 3 * self._size:
            self._size, self._count = 2 * self._size, 0
            self._table = array("Q", bytes(16 * self._size))
            for index in range(0, len(table), 2):
                if table[index + 1]:
                    self.add(table[index], table[index + 1])
        return True
