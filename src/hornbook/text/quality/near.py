"""Near duplicates: what resembles a document that stayed goes.

    "the cat sat on the mat today"  ->  5-word sequences {a, b, c}  ->  128 hash functions, the least of each
                                    ->  [17, 203, 5, ...]           ->  the share of equal bytes estimates |A∩B| / |A∪B|
    signature [128]  ->  21 bands of 6 bytes  ->  documents that agree on a band  ->  is one of them similar enough?

MinHash (Broder 1997): the least hash of a set is that of its union with another with probability |A∩B| / |A∪B|, their
Jaccard similarity. Of each least hash one byte is kept (b-bit minwise hashing, Li and König 2010), so unlike ones agree
once in 256, which the estimate accounts for. Its standard deviation is sqrt(J (1 - J) / 128), 0.035 at 0.8. The
functions are x -> a x + b modulo 2**32 on well-mixed x, with a and b from a fixed sequence.

Locality-sensitive hashing: documents of similarity s agree on a given band of r bytes with probability s**r, and on one
of b bands with 1 - (1 - s**r)**b. r is the largest for which that is 0.99 at the threshold; the candidates (of a chain
the newest 128) are compared by all 128 bytes. Documents are compared with those that stayed: what resembles only a
dropped copy stays, too. Memory: 128 + 8 b bytes a document that stayed, or up to half as much again; b is 21 at 0.8.
"""

from collections.abc import Iterator
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hornbook.errors import UserError
from hornbook.text.quality.words import ngrams, scramble, word_blocks
from hornbook.text.reading import Document

SHINGLE_WORDS: Final = 5
NUM_HASHES: Final = 128
_CHUNK: Final = 512  # shingles at a time: 128 functions of them are 256 KiB, which a core's cache holds
_DRAWS: Final = (scramble(np.arange(1, 2 * NUM_HASHES + 1, dtype=np.uint64)) >> np.uint64(32)).astype(np.uint32)
_FACTORS: Final = _DRAWS[:NUM_HASHES, None] | np.uint32(1)
_SUMMANDS: Final = _DRAWS[NUM_HASHES:, None]
_FINAL_MULTIPLIER: Final = np.uint32(0x9E3779B1)  # 2**32 / golden ratio, to the next prime
LEAST_THRESHOLD: Final = 0.3
_RECALL: Final = 0.99
_LONGEST_CHAIN: Final = 128
_LINKED_AT_ONCE: Final = 1 << 14
_SMALLEST_TABLE: Final = 1024


class NearDuplicates:
    """Drops what resembles a document that stayed. Raises UserError if the threshold is out of its range.

    Args:
        threshold: the least estimated Jaccard similarity of 5-word sequences that is too much, in 0.3..1.
    """

    name = "near duplicates"

    def __init__(self, threshold: float) -> None:
        if not LEAST_THRESHOLD <= threshold <= 1:
            raise UserError(
                f"near duplicates cannot be told at a similarity of {threshold:g}; expected {LEAST_THRESHOLD:g} to 1, "
                "0.8 is usual"
            )
        self._index = SimilarityIndex(threshold)
        self._num_reported = 0

    def keeps(self, document: Document) -> bool:
        """Tell whether a document resembles none that stayed; one without a word resembles nothing."""
        signature = signature_of(document.text)
        if signature is None:
            return True
        if self._index.has_similar(signature):
            return False
        self._index.extend(signature[None])
        return True

    def new_memory(self) -> NDArray[np.uint64]:
        """Return the signatures of the documents that stayed since the last call, as uint64 [n, 16]."""
        signatures = self._index.signatures[self._num_reported :]
        self._num_reported += len(signatures)
        return signatures.copy().view(np.uint64)

    def remember(self, memory: NDArray[np.uint64]) -> None:
        """Take back such signatures, uint64 [n, 16]."""
        self._index.extend(np.ascontiguousarray(memory).view(np.uint8))
        self._num_reported += len(memory)


class SimilarityIndex:
    """Signatures, and for each band of them a table of chains, newest first: ``heads`` -> ``older`` -> ``older`` -> 0.

    Links are numbers of rows, counted from 1. ``threshold`` is the least estimated similarity that counts.
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
        """All that were put in, uint8 [n, 128]; a view."""
        return self._signatures[: self._count]

    def has_similar(self, signature: NDArray[np.uint8]) -> bool:
        """Tell whether one of the signatures that were put in is similar to this one, uint8 [128]."""
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
        """Put signatures in, uint8 [n, 128]."""
        count = self._count + len(signatures)
        if count > len(self._signatures):
            self._reserve(1 << (count - 1).bit_length())
        self._signatures[self._count : count] = signatures
        self._link(self._count, count)
        self._count = count

    def _reserve(self, size: int) -> None:
        """Make room for ``size`` signatures, a power of two, and link those that are there anew."""
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
                    self._heads[band, grouped] = order + first + 1  # of several in one slot the last is written last

    def _slots(self, signatures: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """Return where the chains of signatures [n, 128] begin, uint64 [n, bands]."""
        num_bands, num_rows = self._bands.size, self._band_rows
        bands = signatures[:, : num_bands * num_rows].reshape(-1, num_bands, num_rows)
        sums: NDArray[np.uint64] = bands @ self._multipliers
        return scramble(sums) >> self._shift


def band_rows(threshold: float) -> int:
    """Return the bytes a band: the most that find a document of similarity ``threshold`` with probability 0.99."""
    fitting = (
        rows for rows in range(NUM_HASHES, 1, -1) if 1 - (1 - threshold**rows) ** (NUM_HASHES // rows) >= _RECALL
    )
    return next(fitting, 2)


def signature_of(text: str) -> NDArray[np.uint8] | None:
    """Return the signature of a text, uint8 [128]; None if there is no word in it."""
    least: NDArray[np.uint32] | None = None
    for hashes in shingles(text):
        values = (hashes >> np.uint64(32)).astype(np.uint32)
        for start in range(0, len(values), _CHUNK):
            found = (_FACTORS * values[start : start + _CHUNK] + _SUMMANDS).min(axis=1)
            least = found if least is None else np.minimum(least, found)
    if least is None:
        return None
    # the last byte would not do: in a x + b it depends on that of x alone, so it would be equal in all 128 or in none
    return (((least ^ (least >> np.uint32(16))) * _FINAL_MULTIPLIER) >> np.uint32(24)).astype(np.uint8)


def shingles(text: str) -> Iterator[NDArray[np.uint64]]:
    """Yield the hashes of a text's 5-word sequences, uint64 [n]; of a shorter text, that of all its words."""
    words, num_shingles = np.empty(0, dtype=np.uint64), 0
    for words in word_blocks(text, SHINGLE_WORDS - 1):
        hashes = ngrams(words, SHINGLE_WORDS)
        num_shingles += len(hashes)
        yield hashes
    if not num_shingles and len(words):
        yield ngrams(words, len(words))


def num_equal(threshold: float) -> int:
    """Return how many bytes of two signatures are equal, at least, where the estimate reaches ``threshold``.

    A share e of equal bytes estimates the similarity (256 e - 1) / 255, without bias.
    """
    return ceil(NUM_HASHES * (255 * threshold + 1) / 256 - 1e-9)
