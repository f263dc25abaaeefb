"""Decontamination: drop documents that overlap an evaluation set, since training on them would invalidate its scores.

    lambada_test.jsonl  ->  {13-word sequences}        "... Shane said ..."  shares one of them  ->  dropped

The rule is that of GPT-3 (Brown et al. 2020, appendix C): sequences of 13 words, in lower case without punctuation. A
passage of 8 to 12 words is one sequence; shorter ones are ignored, since they occur everywhere. GPT-3 removed only the
surroundings of an overlap; here the whole document is dropped, even for one quotation, unless ``min_overlap`` is
larger. Memory: 8 bytes per sequence of the evaluation sets, and up to 64 MiB for a table.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hornbook.errors import DataError, UserError
from hornbook.text.documents import list_sources, read_sources
from hornbook.text.quality.words import ngrams, word_blocks
from hornbook.text.reading import Document, ReadOptions, Tally

SHORTEST: Final = 8
_SLOTS_PER_HASH: Final = 16
_MOST_SLOTS: Final = 1 << 26


class Decontamination:
    """A filter that drops documents that share sequences of words with evaluation sets.

    Args:
        paths: files or folders of the evaluation sets, in formats detected by suffix: text, JSONL, Parquet and others.
        field: the field of a record that has the text.
        num_words: number of words of a sequence.
        min_overlap: number of different sequences in common from which a document is dropped.

    Raises:
        UserError: a path matches nothing, or a number is out of range.
        DataError: a file is unreadable, or none of its passages has 8 words.
    """

    name = "overlapping an evaluation set"

    def __init__(self, paths: Sequence[str], field: str = "text", num_words: int = 13, min_overlap: int = 1) -> None:
        if num_words < SHORTEST or min_overlap < 1:
            raise UserError(
                f"an overlap cannot be {min_overlap:,} sequences of {num_words:,} words; expected at least 1 sequence "
                f"of at least {SHORTEST} words (13 are usual)"
            )
        reading = ReadOptions(field=field)
        hashes = [evaluation_ngrams(source, reading, num_words) for source in list_sources(paths, reading)]
        lengths = sorted({length for found in hashes for length in found})
        self._sets = {n: NgramTable(np.concatenate([found[n] for found in hashes if n in found])) for n in lengths}
        self._min_overlap = min_overlap

    def keeps(self, document: Document) -> bool:
        """Return whether a document shares fewer than ``min_overlap`` sequences."""
        shared: set[int] = set()
        for words in word_blocks(document.text, max(self._sets) - 1):
            for length, known in self._sets.items():
                shared.update(known.common(ngrams(words, length)))
            if len(shared) >= self._min_overlap:
                return False
        return True


class NgramTable:
    """A set of 64-bit hashes, uint64 [n]: a table indexed by their high bits filters before a binary search."""

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        self.hashes = np.unique(hashes)
        size = min(_MOST_SLOTS, 1 << (_SLOTS_PER_HASH * len(self.hashes)).bit_length())
        self._shift = np.uint64(64 - (size - 1).bit_length())
        self._taken = np.zeros(size, dtype=np.bool_)
        self._taken[self.hashes >> self._shift] = True

    def common(self, hashes: NDArray[np.uint64]) -> list[int]:
        """Return the elements of ``hashes``, uint64 [n], that are in the set."""
        likely = hashes[self._taken[hashes >> self._shift]]
        positions = np.searchsorted(self.hashes, likely)
        found = likely[self.hashes[np.minimum(positions, len(self.hashes) - 1)] == likely]
        return found.tolist()  # type: ignore[no-any-return]


def evaluation_ngrams(source: str, reading: ReadOptions, num_words: int) -> dict[int, NDArray[np.uint64]]:
    """Return the hashes of an evaluation set's sequences by length, 8 to ``num_words``. Raises DataError."""
    found: dict[int, list[NDArray[np.uint64]]] = {}
    try:
        for passage in read_sources([source], reading, Tally()):
            for words in word_blocks(passage.text, num_words - 1):
                length = min(num_words, len(words))
                if length >= SHORTEST:
                    found.setdefault(length, []).append(ngrams(words, length))
    except DataError as error:
        raise DataError(f"evaluation set {str(error).replace('`field', '`decontaminate_field')}") from error
    if not found:
        raise DataError(f"evaluation set {source}: no passage has {SHORTEST} or more words; check the path")
    return {length: np.unique(np.concatenate(hashes)) for length, hashes in found.items()}
