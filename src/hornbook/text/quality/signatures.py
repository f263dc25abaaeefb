"""MinHash (Broder 1997): the similarity of two texts from 128 bytes of each.

    "the cat sat on the mat today"  ->  5-word sequences {a, b, c}  ->  128 hash functions, the least of each
                                    ->  [17, 203, 5, ...]           ->  the share of equal bytes estimates |A∩B| / |A∪B|

The least hash of a set is that of its union with another with probability |A∩B| / |A∪B|, Jaccard's similarity. Of each
least hash one byte is kept (b-bit minwise hashing, Li and König 2010), so unlike ones agree once in 256, which the
estimate accounts for. Its standard deviation is sqrt(J (1 - J) / 128): 0.035 at 0.8. The price of the bytes: 1 part in
256 of that, for an eighth of the memory.

The functions are x -> a x + b modulo 2**32 on well-mixed x, with a and b from a fixed sequence.
"""

from collections.abc import Iterator
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hornbook.text.quality.words import ngrams, scramble, word_blocks

SHINGLE_WORDS: Final = 5
NUM_HASHES: Final = 128
_CHUNK: Final = 512  # shingles at a time: 128 functions of them are 256 KiB, which a core's cache holds
_DRAWS: Final = (scramble(np.arange(1, 2 * NUM_HASHES + 1, dtype=np.uint64)) >> np.uint64(32)).astype(np.uint32)
_FACTORS: Final = _DRAWS[:NUM_HASHES, None] | np.uint32(1)
_SUMMANDS: Final = _DRAWS[NUM_HASHES:, None]
_FINAL_MULTIPLIER: Final = np.uint32(0x9E3779B1)  # 2**32 / golden ratio, to the next prime


def signature_of(text: str) -> NDArray[np.uint8] | None:
    """Return the signature of a text, uint8 [128]; None if there is no word in it."""
    least: NDArray[np.uint32] | None = None
    for hashes in shingles(text):
        values = (hashes >> np.uint64(32)).astype(np.uint32)
        for start in range(0, len(values), _CHUNK):
            found = (_FACTORS * values[start : start + _CHUNK] + _SUMMANDS).min(axis=1)
            least = found if least is None else np.minimum(least, found)
    return None if least is None else _one_byte(least)


def _one_byte(least: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return a byte of each hash [128] that depends on all of it.

    The last byte would not do: in a x + b it depends on that of x alone, so it would be equal in all 128 or in none.
    """
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
