r"""Duplicates: drop documents that equal an earlier one, or are similar to a kept one.

Exact duplicates are equal except for white space: a run of it equals a blank, at the ends it is ignored.

    "Call me\r\nIshmael. "   ->  "Call me Ishmael. "  ->  hash of 127 bits  ->  seen before?

Memory: 21 to 43 bytes per document, a Python set would take a hundred. The probability that two of a billion different
texts have the same hash is 1e-20. Near duplicates are found by MinHash and locality-sensitive hashing:

    "the cat sat on the mat today"  ->  5-word sequences {a, b, c}  ->  128 hash functions, the minimum of each
                                    ->  [17, 203, 5, ...]           ->  the share of equal bytes estimates |A∩B| / |A∪B|
    signature [128]  ->  21 bands of 6 bytes  ->  candidates with an equal band  ->  is one of them similar enough?

MinHash (Broder 1997): the minimal hashes of two sets are equal with probability |A∩B| / |A∪B|, their Jaccard
similarity J. One byte of each minimum is stored (b-bit minwise hashing, Li and König 2010), so different minima agree
with probability 1/256, which the estimate corrects. Its standard deviation is sqrt(J (1 - J) / 128), 0.035 at 0.8. The
functions are x -> a x + b modulo 2**32 on well-mixed x, with a and b from a fixed sequence.

Locality-sensitive hashing: documents of similarity s agree on a given band of r bytes with probability s**r, and on one
of b bands with 1 - (1 - s**r)**b. r is the largest value for which that is 0.99 at the threshold; candidates (the
newest 128 of a chain) are compared by all 128 bytes. Only kept documents are candidates, so a document that is similar
only to a dropped one is kept. Memory: 128 + 8 b bytes per kept document, or up to 1.5 times that; b is 21 at 0.8.
"""

import re
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hornbook.errors import UserError
from hornbook.text.quality.words import ngrams, scramble, text_blocks, word_blocks
from hornbook.text.reading import Document

SHINGLE_WORDS: Final = 5
NUM_HASHES: Final = 128
_CHUNK: Final = 512  # shingles at a time: the values of 128 functions are 256 KiB, which fit into a core's cache
_DRAWS: Final = (scramble(np.arange(1, 2 * NUM_HASHES + 1, dtype=np.uint64)) >> np.uint64(32)).astype(np.uint32)
_FACTORS: Final = _DRAWS[:NUM_HASHES, None] | np.uint32(1)
_SUMMANDS: Final = _DRAWS[NUM_HASHES:, None]
_FINAL_MULTIPLIER: Final = np.uint32(0x9E3779B1)  # 2**32 / golden ratio, rounded to a prime
LEAST_THRESHOLD: Final = 0.3
_RECALL: Final = 0.99
_LONGEST_CHAIN: Final = 128
_LINKED_AT_ONCE: Final = 1 << 14
_SMALLEST_TABLE: Final = 1024
_BLANK: Final = re.compile(r"\s")


class NearDuplicates:
    """A filter that drops documents similar to a kept one.

    Args:
        threshold: estimated Jaccard similarity, over 5-word sequences, from which a document is dropped, in [0.3, 1].

    Raises:
        UserError: the threshold is out of range.
    """

    name = "near duplicates"

    def __init__(self, threshold: float) -> None:
        if not LEAST_THRESHOLD <= threshold <= 1:
            raise UserError(
                f"the similarity of near duplicates is {threshold:g}; expected {LEAST_THRESHOLD:g} to 1 (0.8 is usual)"
            )
        self._index = SimilarityIndex(threshold)
        self._num_reported = 0

    def keeps(self, document: Document) -> bool:
        """Return whether a document is similar to no kept one; a document without words never is."""
        signature = signature_of(document.text)
        if signature is None:
            return True
        if self._index.has_similar(signature):
            return False
        self._index.extend(signature[None])
        return True

    def new_memory(self) -> NDArray[np.uint64]:
        """Return the signatures of the documents kept since the last call, viewed as uint64 [n, 16]."""
        signatures = self._index.signatures[self._num_reported :]
        self._num_reported += len(signatures)
        return signatures.copy().view(np.uint64)

    def remember(self, memory: NDArray[np.uint64]) -> None:
        """Restore signatures from ``new_memory``, uint64 [n, 16]."""
        self._index.extend(np.ascontiguousarray(memory).view(np.uint8))
        self._num_reported += len(memory)


class SimilarityIndex:
    """A set of signatures with a hash table per band, of chains from new to old: ``heads`` -> ``older`` -> ... -> 0.

    Links are row numbers from 1. ``threshold`` is the minimum estimated similarity of similar signatures.
    """

    def __init__(self, threshold: float) -> None:
        self._needed = num_equal(threshold)
        self._band_rows = band_rows(threshold)
        self._bands = np.arange(NUM_HASHES // self._band_rows)
        self._multipliers = scramble(np.arange(1, 1 + self._band_rows, dtype=np.uint64))
        self._count = 0
        self._signatures = np.empty((0, NUM_HASHES), dtype=np.uint8)
        self._older = np.empty((0, len(self._bands)), dtype=np.uint32)
        self._reserve(_SMALLEST_TABLE)

    @property
    def signatures(self) -> NDArray[np.uint8]:
        """A view of all signatures, uint8 [n, 128]."""
        return self._signatures[: self._count]

    def has_similar(self, signature: NDArray[np.uint8]) -> bool:
        """Return whether a signature in the set is similar to ``signature``, uint8 [128]."""
        bands = self._bands
        links = self._heads[bands, self._slots(signature[None])[0]]
        for _ in range(_LONGEST_CHAIN):
            linked = links > 0
            bands, rows = bands[linked], links[linked] - 1
            if not len(rows):
                break
            if (self._signatures[rows] == signature).sum(axis=1).max() >= self._needed:
                return True
            links = self._older[rows, bands]
        return False

    def extend(self, signatures: NDArray[np.uint8]) -> None:
        """Add signatures, uint8 [n, 128]."""
        count = self._count + len(signatures)
        if count > len(self._signatures):
            self._reserve(1 << (count - 1).bit_length())
        self._signatures[self._count : count] = signatures
        self._link(self._count, count)
        self._count = count

    def _reserve(self, size: int) -> None:
        """Grow to ``size`` signatures, a power of two, and rebuild the chains."""
        grown = np.empty((size, NUM_HASHES), dtype=np.uint8)
        grown[: self._count] = self.signatures
        self._signatures = grown
        self._older = np.empty((size, len(self._bands)), dtype=np.uint32)
        self._heads = np.zeros((len(self._bands), size), dtype=np.uint32)
        self._shift = np.uint64(64 - (size - 1).bit_length())
        self._link(0, self._count)

    def _link(self, start: int, stop: int) -> None:
        """Link rows ``start`` to ``stop - 1`` into the chains of all bands."""
        for first in range(start, stop, _LINKED_AT_ONCE):
            slots = self._slots(self._signatures[first : min(stop, first + _LINKED_AT_ONCE)])
            if len(slots) == 1:
                self._older[first] = self._heads[self._bands, slots[0]]
                self._heads[self._bands, slots[0]] = first + 1
            else:
                for band in range(len(self._bands)):
                    order = np.argsort(slots[:, band], kind="stable")
                    grouped = slots[order, band]
                    older = self._heads[band, grouped]
                    follows = np.flatnonzero(grouped[1:] == grouped[:-1]) + 1
                    older[follows] = order[follows - 1] + first + 1
                    self._older[order + first, band] = older
                    self._heads[band, grouped] = order + first + 1  # of several rows in a slot, the last one wins

    def _slots(self, signatures: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """Return the slots of the chains of signatures [n, 128], uint64 [n, bands]."""
        num_bands, num_rows = self._bands.size, self._band_rows
        bands = signatures[:, : num_bands * num_rows].reshape(-1, num_bands, num_rows)
        sums: NDArray[np.uint64] = bands @ self._multipliers
        return scramble(sums) >> self._shift


def band_rows(threshold: float) -> int:
    """Return the bytes per band: the most that find a document of similarity ``threshold`` with probability 0.99."""
    fitting = (
        rows for rows in range(NUM_HASHES, 1, -1) if 1 - (1 - threshold**rows) ** (NUM_HASHES // rows) >= _RECALL
    )
    return next(fitting, 2)


def signature_of(text: str) -> NDArray[np.uint8] | None:
    """Return the signature of a text, uint8 [128]; None for a text without words."""
    least: NDArray[np.uint32] | None = None
    for hashes in shingles(text):
        values = (hashes >> np.uint64(32)).astype(np.uint32)
        for start in range(0, len(values), _CHUNK):
            found = (_FACTORS * values[start : start + _CHUNK] + _SUMMANDS).min(axis=1)
            least = found if least is None else np.minimum(least, found)
    if least is None:
        return None
    # not the low byte: that of a x + b depends only on the low byte of x, so all 128 would agree or none
    return (((least ^ (least >> np.uint32(16))) * _FINAL_MULTIPLIER) >> np.uint32(24)).astype(np.uint8)


def shingles(text: str) -> Iterator[NDArray[np.uint64]]:
    """Yield the hashes of a text's 5-word sequences, uint64 [n]; a shorter text is one sequence."""
    words, num_shingles = np.empty(0, dtype=np.uint64), 0
    for words in word_blocks(text, SHINGLE_WORDS - 1):
        hashes = ngrams(words, SHINGLE_WORDS)
        num_shingles += len(hashes)
        yield hashes
    if not num_shingles and len(words):
        yield ngrams(words, len(words))


def num_equal(threshold: float) -> int:
    """Return the minimum number of equal bytes of two signatures whose estimated similarity is ``threshold`` or more.

    From a share e of equal bytes, (256 e - 1) / 255 is an unbiased estimate of the similarity.
    """
    return ceil(NUM_HASHES * (255 * threshold + 1) / 256 - 1e-9)


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
