"""Which candidates are duplicates, in the order of the inputs, whatever slices they were read in.

    candidates   0 a   1 b   2 a   3 c'  4 c   5 c"        a is a copy of a; c is similar to c'
    dropped by   -     -     exact -     near  near        the first one stays

Exact duplicates have the hash of an earlier candidate. Near duplicates are those of a sequential filter: a document is
dropped if it is similar to one that was kept. Bands of signatures that are equal meet by a sort on disk
(`hornbook.corpora.building.external_sort`), which leaves links from documents to the previous ones with such a band.
Then the linked documents are decided one after the other; a link to a dropped document is replaced by that document's
own, so that the links of a band lead from kept document to kept document, of which the newest 128 are compared.

Memory holds some 200 MiB, whatever the number of candidates. What grows is on disk: 24 bytes for each candidate and
hash; 137 bytes, and 24 for each band, for each signature; some of it is read at random through the system's cache.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Hashes, Int64s
from hornbook.corpora.building.external_sort import FILE_BYTES, Buckets, previous_equal, scratch_array
from hornbook.corpora.building.parts import Part
from hornbook.text.quality.duplicates import NUM_HASHES, band_keys, band_rows, num_equal
from hornbook.text.quality.policy import EXACT, NEAR, Filters

_LONGEST_CHAIN: Final = 128
_MOST_BUCKETS: Final = 256
"""No more files than a process may open; from 50 million documents on, a bucket is larger than 64 MiB."""
_BAND_BITS: Final = np.uint64(6)
"""At most 64 bands."""


def find_droppers(parts: Sequence[Part], filters: Filters, folder: Path) -> NDArray[np.uint8]:
    """Return the number of the filter that drops each candidate of the parts, uint8 [candidates]; 0 if none does.

    Args:
        parts: all parts, in order.
        filters: the filters of the build; numbers count their names from 1.
        folder: for scratch files; the array is one.
    """
    names = filters.names
    droppers: NDArray[np.uint8] = scratch_array(folder, (sum(part.candidates for part in parts),), np.uint8)
    for start, part in _starts(parts):
        droppers[start : start + part.candidates] = part.candidate_rows()["dropper"]
    if filters.exact_duplicates:
        code = names.index(EXACT) + 1
        for pairs in previous_equal(_hashes(parts), len(droppers), 2, folder):
            droppers[pairs[:, 0]] = code
    if filters.near_duplicates is not None:
        near = _NearDuplicates(parts, droppers, filters.near_duplicates, folder)
        for candidate in near.dropped():
            droppers[candidate] = names.index(NEAR) + 1
    return droppers


def _starts(parts: Sequence[Part]) -> Iterator[tuple[int, Part]]:
    """Yield the parts that have candidates, with the number of their first one."""
    start = 0
    for part in parts:
        if part.candidates:
            yield start, part
        start += part.candidates


def _hashes(parts: Sequence[Part]) -> Iterator[tuple[Hashes, Int64s]]:
    for start, part in _starts(parts):
        rows = part.candidate_rows()
        yield np.column_stack((rows["low"], rows["high"])), np.arange(start, start + len(rows))


class _NearDuplicates:
    """The signatures of candidates that no other filter drops, numbered from 0."""

    def __init__(self, parts: Sequence[Part], droppers: NDArray[np.uint8], threshold: float, folder: Path) -> None:
        self._threshold, self._folder = threshold, folder
        self._num_bands = NUM_HASHES // band_rows(threshold)
        most = sum(part.signatures for part in parts)
        self._signatures: NDArray[np.uint8] = scratch_array(folder, (most, NUM_HASHES), np.uint8)
        self._candidates: Int64s = scratch_array(folder, (most,), np.int64)
        self._count = 0
        for start, part in _starts(parts):
            is_signed = part.candidate_rows()["is_signed"]
            is_kept = droppers[start : start + part.candidates] == 0
            rows = part.signature_rows()[is_kept[is_signed]] if part.signatures else self._signatures[:0]
            end = self._count + len(rows)
            self._signatures[self._count : end] = rows
            self._candidates[self._count : end] = start + np.flatnonzero(is_kept & is_signed)
            self._count = end

    def dropped(self) -> Iterator[int]:
        """Yield the candidates that are similar to an earlier one that is kept, in order."""
        # the previous kept document with the same band, plus 1, or 0: [documents, bands]
        older: Int64s = scratch_array(self._folder, (self._count, self._num_bands), np.int64)
        is_dropped: NDArray[np.bool_] = scratch_array(self._folder, (self._count,), np.bool_)
        needed = num_equal(self._threshold)
        for number, bands, previous in self._linked():
            own = older[number]
            own[bands] = np.where(is_dropped[previous], older[previous, bands], previous + 1)
            chain = np.flatnonzero(own)
            rows = own[chain] - 1
            for _ in range(_LONGEST_CHAIN):
                if not len(rows):
                    break
                if (self._signatures[rows] == self._signatures[number]).sum(axis=1).max() >= needed:
                    is_dropped[number] = True
                    yield int(self._candidates[number])
                    break
                rows = older[rows, chain] - 1
                chain, rows = chain[rows >= 0], rows[rows >= 0]

    def _linked(self) -> Iterator[tuple[int, Int64s, Int64s]]:
        """Yield the documents that share a band with an earlier one, in order: number, bands, previous documents."""
        total = self._count * self._num_bands
        per_bucket = max(1, FILE_BYTES // (16 * self._num_bands), -(-self._count // _MOST_BUCKETS))
        links = Buckets(self._folder, -(-self._count // per_bucket) or 1, 2)
        try:
            for pairs in previous_equal(self._band_keys(), total, 1, self._folder):
                links.add(pairs.astype(np.uint64), (pairs[:, 0] >> int(_BAND_BITS)) // per_bucket)
            for bucket in range(-(-self._count // per_bucket)):
                several = list(links.read(bucket))
                if not several:
                    continue
                rows = np.concatenate(several).astype(np.int64)
                rows = rows[np.argsort(rows[:, 0])]
                numbers, starts = np.unique(rows[:, 0] >> int(_BAND_BITS), return_index=True)
                for number, some in zip(numbers.tolist(), np.split(rows, starts[1:]), strict=True):
                    yield number, some[:, 0] & ((1 << int(_BAND_BITS)) - 1), some[:, 1] >> int(_BAND_BITS)
        finally:
            links.close()

    def _band_keys(self) -> Iterator[tuple[Hashes, Int64s]]:
        """Yield the key of each band of each document, with the document's number and the band in one integer."""
        bands = np.arange(self._num_bands)
        for start in range(0, self._count, 1 << 14):
            signatures = self._signatures[start : min(self._count, start + (1 << 14))]
            numbers = (np.arange(start, start + len(signatures))[:, None] << int(_BAND_BITS)) + bands
            yield band_keys(signatures, self._threshold).reshape(-1, 1), numbers.reshape(-1)
