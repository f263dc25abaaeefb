r"""Hashes of the words of a text and of its n-grams.

    "Don't stop -- don_t STOP!"   ->   don t stop don t stop   ->   [a b c a b c]   ->   n = 2: [ab bc ca ab bc]

Words are case-folded and separated by punctuation, so ``don't`` equals ``don 't``, and WikiText's ``well @-@ known``
equals ``well-known``. In scripts without blanks (Chinese, Japanese, Thai, Lao, Khmer, Burmese), each character is a
word. The hash of a word is the CRC-32 of its UTF-8, the same on every machine; n-grams are hashed into 64 bits. Long
texts are processed a million characters at a time.
"""

import re
from collections.abc import Iterator
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

BLOCK_CHARACTERS: Final = 1 << 20
_UNSPACED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD: Final = re.compile(rf"[^\W_{_UNSPACED}]+|[{_UNSPACED}]")
_SEPARATOR: Final = re.compile(r"[\W_]")
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio
_FINAL_MULTIPLIER: Final = np.uint64(0xD6E8FEB86659FD93)


def word_blocks(text: str, overlap: int) -> Iterator[NDArray[np.uint64]]:
    """Yield the hashes of a text's words, uint64 [n], block by block.

    Each block begins with the last ``overlap`` words before it, so every sequence of up to ``overlap + 1`` words is in
    one block. If the text has at most ``overlap`` words, the last block has all of them.
    """
    tail = np.empty(0, dtype=np.uint64)
    for block in text_blocks(text, _SEPARATOR):
        numbers = [crc32(word.encode()) for word in _WORD.findall(block.casefold())]
        words = np.concatenate((tail, np.array(numbers, dtype=np.uint64)))
        yield words
        tail = words[max(0, len(words) - overlap) :]


def text_blocks(text: str, boundary: re.Pattern[str]) -> Iterator[str]:
    """Yield blocks of a text that end with the first ``boundary`` after a million characters; the last may be empty."""
    start = 0
    while len(text) - start > BLOCK_CHARACTERS and (cut := boundary.search(text, start + BLOCK_CHARACTERS)):
        yield text[start : cut.end()]
        start = cut.end()
    yield text[start:]


def ngrams(words: NDArray[np.uint64], length: int) -> NDArray[np.uint64]:
    """Return the hash of each sequence of ``length`` words, from uint64 [n] to uint64 [max(0, n - length + 1)]."""
    count = max(0, len(words) - length + 1)
    hashes = np.zeros(count, dtype=np.uint64)
    for start in range(length if count else 0):
        hashes *= _MULTIPLIER
        hashes += words[start : start + count]
    return scramble(hashes)


def scramble(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix values, uint64 of any shape, so that every bit depends on all bits."""
    values = (values ^ (values >> np.uint64(32))) * _FINAL_MULTIPLIER
    values = (values ^ (values >> np.uint64(32))) * _FINAL_MULTIPLIER
    return values ^ (values >> np.uint64(32))
