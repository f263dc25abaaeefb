r"""Exact duplicates: of texts that are equal but for white space, the first stays.

    "Call me\r\nIshmael. "   ->  "Call me Ishmael. "  ->  127 bits  ->  seen before?

Every run of white space counts as one blank, none at the ends. Letters, case and punctuation all count. Memory: 21 to
43 bytes a document, where a Python set would take a hundred. In a billion documents, two different texts have one hash
with a probability of 1e-20.
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
    """Drops what came before."""

    name = "exact duplicates"

    def __init__(self) -> None:
        self._seen = SeenPairs()
        self._new = array("Q")

    def keeps(self, document: Document) -> bool:
        """Tell whether a text is new."""
        low, high = text_hash(document.text)
        is_new = self._seen.add(low, high)
        if is_new:
            self._new.extend((low, high))
        return is_new

    def new_memory(self) -> NDArray[np.uint64]:
        """Return the hashes of the texts that were new since the last call, uint64 [n, 2]."""
        memory = np.array(self._new, dtype=np.uint64).reshape(-1, 2)
        self._new = array("Q")
        return memory

    def remember(self, memory: NDArray[np.uint64]) -> None:
        """Take back such hashes, uint64 [n, 2]."""
        for low, high in memory.tolist():
            self._seen.add(low, high)


def text_hash(text: str) -> tuple[int, int]:
    """Hash a text but for its white space into two numbers of 64 bits, the second of which is odd."""
    hasher = blake2b(digest_size=16)
    for block in text_blocks(text, _BLANK):
        hasher.update("".join(f"{word} " for word in block.split()).encode())
    digest = hasher.digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1


class SeenPairs:
    """A set of pairs of 64-bit numbers, the second one not 0: a table at most three quarters full, probed in line."""

    def __init__(self) -> None:
        self._size, self._count = _SMALLEST_TABLE, 0
        self._table = array("Q", bytes(16 * self._size))

    def __len__(self) -> int:
        return self._count

    def add(self, low: int, high: int) -> bool:
        """Put a pair in and tell whether it was missing."""
        table, slot = self._table, low & (self._size - 1)
        while there := table[2 * slot + 1]:
            if there == high and table[2 * slot] == low:
                return False
            slot = (slot + 1) & (self._size - 1)
        table[2 * slot], table[2 * slot + 1] = low, high
        self._count += 1
        if 4 * self._count > 3 * self._size:
            self._size, self._count = 2 * self._size, 0
            self._table = array("Q", bytes(16 * self._size))
            for place in range(0, len(table), 2):
                if table[place + 1]:
                    self.add(table[place], table[place + 1])
        return True
