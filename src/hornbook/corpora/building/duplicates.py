"""Which candidates are duplicates, in the order of the inputs, whatever slices they were read in.

    candidates   0 a   1 b   2 a   3 c'  4 c   5 c"        a is a copy of a; c is similar to c'
    dropped by   -     -     exact -     near  near        the first one stays

Exact duplicates have the hash of an earlier candidate. Near duplicates are those of a sequential filter: a document is
dropped if it is similar to one that was kept. Bands of signatures that are equal meet by a sort on disk
(`previous_equal`), which leaves links from documents to the previous ones with such a band.
Then the linked documents are decided one after the other; a link to a dropped document is replaced by that document's
own, so that the links of a band lead from kept document to kept document, of which the newest 128 are compared.

Memory holds some 200 MiB, whatever the number of candidates. What grows is on disk: 24 bytes for each candidate and
hash; 137 bytes, and 24 for each band, for each signature; some of it is read at random through the system's cache.

The sort finds pairs of equal keys among more keys than memory holds::

    keys 7 3 7 9 3 7, numbered 0 to 5      ->      (2, 0), (4, 1), (5, 2): each with the previous one of its key

Keys are distributed over files by their first bits, some 64 MiB each, and a file is sorted in memory: a sort on disk
in which only equal keys have to meet. Keys must be hashes, so that the files have similar sizes. A key that is very
frequent makes a large file, which is therefore read piece by piece: memory holds a piece and the different keys.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hornbook.arrays import Hashes, Int64s
from hornbook.corpora.building.parts import Part
from hornbook.storage.scratch import ScratchFile
from hornbook.text.quality.duplicates import NUM_HASHES, band_keys, band_rows, num_equal
from hornbook.text.quality.policy import EXACT, NEAR, Filters

FILE_BYTES: Final = 64 << 20
_MOST_FILES: Final = 512
_ROWS_AT_ONCE: Final = 1 << 16
_LONGEST_CHAIN: Final = 128
_MOST_BUCKETS: Final = 256
"""No more files than a process may open; from 50 million documents on, a bucket is larger than 64 MiB."""
_BAND_BITS: Final = np.uint64(6)
"""At most 64 bands."""


class Buckets:
    """Rows of integers, distributed over scratch files.

    Args:
        folder: where the files are, which have no names.
        num_buckets: number of files.
        width: number of 64-bit integers of a row.
    """

    def __init__(self, folder: Path, num_buckets: int, width: int) -> None:
        self._folder, self._width = folder, width
        self._files: list[ScratchFile | None] = [None] * num_buckets
        self._used = [0] * num_buckets

    def add(self, rows: Hashes, buckets: Int64s) -> None:
        """Append rows, uint64 [n, width], to the buckets with these numbers, int64[n]; their order is kept."""
        order = np.argsort(buckets, kind="stable")
        numbers, starts = np.unique(buckets[order], return_index=True)
        for number, some in zip(numbers.tolist(), np.split(rows[order], starts[1:]), strict=False):  # even of no rows
            file = self._files[number] = self._files[number] or ScratchFile(self._folder)
            data = np.ascontiguousarray(some).data.cast("B")
            end = self._used[number] + len(data)
            if end > file.size:
                file.reserve(max(end, min(2 * file.size, file.size + (8 << 20))))
            file.write(data, self._used[number])
            self._used[number] = end

    def read(self, number: int) -> Iterator[Hashes]:
        """Yield the rows of a bucket in pieces of at most 64 MiB, uint64 [n, width]."""
        file, step = self._files[number], FILE_BYTES // (8 * self._width) * 8 * self._width
        for start in range(0, self._used[number], step):
            assert file is not None, "has rows"
            rows = np.empty((min(step, self._used[number] - start) // (8 * self._width), self._width), dtype=np.uint64)
            file.read(rows.data.cast("B"), start)
            yield rows

    def close(self) -> None:
        """Free the disk."""
        for file in self._files:
            if file is not None:
                file.close()


def num_buckets(total: int, width: int) -> int:
    """Return the number of files for ``total`` rows of ``width`` integers, a power of two."""
    wanted = max(1, -(-total * width * 8 // FILE_BYTES))
    return min(_MOST_FILES, 1 << (wanted - 1).bit_length())


def previous_equal(keys: Iterable[tuple[Hashes, Int64s]], total: int, width: int, folder: Path) -> Iterator[Int64s]:
    """Yield pairs of a number and the previous number with an equal key.

    Args:
        keys: pieces of keys, uint64 [n, width], with ascending numbers, int64[n].
        total: number of keys.
        width: number of 64-bit integers of a key; the first one must be a hash.
        folder: for scratch files.

    Yields:
        Pairs, int64 [n, 2], in no order.
    """
    count = num_buckets(total, width + 1)
    shift = np.uint64(64 - (count - 1).bit_length())
    buckets = Buckets(folder, count, width + 1)
    try:
        for some, numbers in keys:
            for start in range(0, len(some), _ROWS_AT_ONCE):
                piece = some[start : start + _ROWS_AT_ONCE]
                rows = np.column_stack((piece, numbers[start : start + _ROWS_AT_ONCE].astype(np.uint64)))
                first = piece[:, 0] >> shift if count > 1 else np.zeros(len(piece), dtype=np.uint64)
                buckets.add(rows, first.astype(np.int64))
        for number in range(count):
            latest = np.empty((0, width + 1), dtype=np.uint64)
            for piece in buckets.read(number):
                rows = np.concatenate((latest, piece))
                rows = rows[np.lexsort(rows[:, :width].T)]  # stable, so numbers of a key ascend
                repeats = (rows[1:, :width] == rows[:-1, :width]).all(axis=1)
                yield np.column_stack((rows[1:, width][repeats], rows[:-1, width][repeats])).astype(np.int64)
                latest = rows[np.append(~repeats, True)] if len(rows) else rows
    finally:
        buckets.close()


def scratch_array(folder: Path, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros in a file without a name, which memory holds only as far as it is in use."""
    size = math.prod(shape)
    file = ScratchFile(folder)
    file.reserve(size * np.dtype(dtype).itemsize)
    return np.frombuffer(file.map(), dtype=dtype, count=size).reshape(shape)


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
