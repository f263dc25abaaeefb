"""Pairs of equal keys among more keys than memory holds.

    keys 7 3 7 9 3 7, numbered 0 to 5      ->      (2, 0), (4, 1), (5, 2): each with the previous one of its key

Keys are distributed over files by their first bits, some 64 MiB each, and a file is sorted in memory: a sort on disk
in which only equal keys have to meet. Keys must be hashes, so that the files have similar sizes. A key that is very
frequent makes a large file, which is therefore read piece by piece: memory holds a piece and the different keys.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hornbook.arrays import Hashes, Int64s
from hornbook.storage.scratch import ScratchFile

FILE_BYTES: Final = 64 << 20
_MOST_FILES: Final = 512
_ROWS_AT_ONCE: Final = 1 << 16


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
