r"""Duplicates: hashes and signatures of texts, by which equal and similar ones are found.

Exact duplicates are equal except for white space: a run of it equals a blank, at the ends it is ignored.

    "Call me\r\nIshmael. "   ->  "Call me Ishmael. "  ->  hash of 127 bits  ->  seen before?

The probability that two of a billion different texts have the same hash is 1e-20. Near duplicates are found by MinHash
and locality-sensitive hashing:

    "the cat sat on the mat today"  ->  5-word sequences {a, b, c}  ->  128 hash functions, the minimum of each
                                    ->  [17, 203, 5, ...]           ->  the share of equal bytes estimates |A∩B| / |A∪B|
    signature [128]  ->  21 bands of 6 bytes  ->  candidates with an equal band  ->  is one of them similar enough?

MinHash (Broder 1997): the minimal hashes of two sets are equal with probability |A∩B| / |A∪B|, their Jaccard
similarity J. One byte of each minimum is stored (b-bit minwise hashing, Li and König 2010), so different minima agree
with probability 1/256, which the estimate corrects. Its standard deviation is sqrt(J (1 - J) / 128), 0.035 at 0.8. The
functions are x -> a x + b modulo 2**32 on well-mixed x, with a and b from a fixed sequence.

Locality-sensitive hashing: documents of similarity s agree on a given band of r bytes with probability s**r, and on one
of b bands with 1 - (1 - s**r)**b. r is the largest value for which that is 0.99 at the threshold; candidates are
compared by all 128 bytes. `hornbook.corpora.building.duplicates` finds them on disk.
"""

import re
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hornbook.errors import UserError
from hornbook.text.quality.words import ngrams, scramble, text_blocks, word_blocks

SHINGLE_WORDS: Final = 5
NUM_HASHES: Final = 128
_CHUNK: Final = 512  # shingles at a time: the values of 128 functions are 256 KiB, which fit into a core's cache
_FINAL_MULTIPLIER: Final = np.uint32(0x9E3779B1)  # 2**32 / golden ratio, rounded to a prime
LEAST_THRESHOLD: Final = 0.3
_RECALL: Final = 0.99
_BLANK: Final = re.compile(r"\s")


def check_threshold(threshold: float) -> None:
    """Raise UserError if a similarity from which documents are near duplicates is out of range."""
    if not LEAST_THRESHOLD <= threshold <= 1:
        raise UserError(
            f"the similarity of near duplicates is {threshold:g}; expected {LEAST_THRESHOLD:g} to 1 (0.8 is usual)"
        )


def band_keys(signatures: NDArray[np.uint8], threshold: float) -> NDArray[np.uint64]:
    """Return a hash of each band of signatures, from uint8 [n, 128] to uint64 [n, bands]; bands have other hashes."""
    num_rows = band_rows(threshold)
    num_bands = NUM_HASHES // num_rows
    multipliers = scramble(np.arange(1, 1 + num_rows, dtype=np.uint64))
    bands = signatures[:, : num_bands * num_rows].reshape(-1, num_bands, num_rows)
    sums: NDArray[np.uint64] = bands @ multipliers
    return scramble(sums + scramble(np.arange(1 << 16, (1 << 16) + num_bands, dtype=np.uint64)))


def band_rows(threshold: float) -> int:
    """Return the bytes per band: the most that find a document of similarity ``threshold`` with probability 0.99."""
    fitting = (
        rows for rows in range(NUM_HASHES, 1, -1) if 1 - (1 - threshold**rows) ** (NUM_HASHES // rows) >= _RECALL
    )
    return next(fitting, 2)


def signature_of(text: str) -> NDArray[np.uint8] | None:
    """Return the signature of a text, uint8 [128]; None for a text without words."""
    factors, summands = _hash_functions()
    least: NDArray[np.uint32] | None = None
    for hashes in shingles(text):
        values = (hashes >> np.uint64(32)).astype(np.uint32)
        for start in range(0, len(values), _CHUNK):
            found = (factors * values[start : start + _CHUNK] + summands).min(axis=1)
            least = found if least is None else np.minimum(least, found)
    if least is None:
        return None
    # not the low byte: that of a x + b depends only on the low byte of x, so all 128 would agree or none
    return (((least ^ (least >> np.uint32(16))) * _FINAL_MULTIPLIER) >> np.uint32(24)).astype(np.uint8)


@cache
def _hash_functions() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the odd factor and the summand of each function, uint32 [128, 1]."""
    draws = (scramble(np.arange(1, 2 * NUM_HASHES + 1, dtype=np.uint64)) >> np.uint64(32)).astype(np.uint32)
    return draws[:NUM_HASHES, None] | np.uint32(1), draws[NUM_HASHES:, None]


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


def text_hash(text: str) -> tuple[int, int]:
    """Return a hash of a text, ignoring white space differences, as two 64-bit integers, the second one odd."""
    hasher = blake2b(digest_size=16)
    for block in text_blocks(text, _BLANK):
        hasher.update(" ".join([*block.split(), ""]).encode())
    digest = hasher.digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1
