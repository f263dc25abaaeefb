"""Where the blocks of a block-sparse matrix are, and what kernels derive of that.

::

    W [R·b, C·b]:  W[rows[i]·b : rows[i]·b + b, columns[i]·b : columns[i]·b + b] = values[i]
"""

from collections.abc import MutableMapping
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


class Line(NamedTuple):
    """The blocks of one row of blocks, or of one column."""

    number: int
    """Of the row or column."""
    blocks: slice | Tensor
    """Which blocks they are."""
    others: Tensor
    """int64 ``[k]``: the column of each block of a row, the row of each block of a column."""


class Pattern(NamedTuple):
    """Where the blocks of a matrix of R x C blocks are: int64 tensors, which operators take as a list."""

    rows: Tensor
    """``[n]``, in the order of rows, then columns."""
    columns: Tensor
    """``[n]``"""
    row_starts: Tensor
    """``[R + 1]``: the first block of each row, and n."""
    column_starts: Tensor
    """``[C + 1]``, of blocks in the order of columns, then rows."""
    column_order: Tensor
    """``[n]``: the blocks in that order."""

    @classmethod
    def of(cls, rows: Tensor, columns: Tensor, num_rows: int, num_columns: int) -> "Pattern":
        """Return the pattern of blocks at ``rows`` and ``columns``, integers ``[n]``, sorted by row, then column."""
        rows, columns = rows.long(), columns.long()
        order = torch.argsort(columns, stable=True)
        return cls(rows, columns, _starts(rows, num_rows), _starts(columns[order], num_columns), order)

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.row_starts) - 1

    @property
    def num_columns(self) -> int:
        """C."""
        return len(self.column_starts) - 1

    def by_row(self) -> tuple[Line, ...]:
        """Return the rows that have blocks; found once for each pattern."""
        if (lines := _LINES.get(self.row_starts)) is None:
            runs = _runs(self.row_starts)
            lines = tuple(Line(row, slice(*ends), self.columns[slice(*ends)]) for row, ends in runs)
            _LINES[self.row_starts] = lines
        return lines

    def by_column(self) -> tuple[Line, ...]:
        """Return the columns that have blocks; found once for each pattern."""
        if (lines := _LINES.get(self.column_starts)) is None:
            ordered = [(column, self.column_order[slice(*ends)]) for column, ends in _runs(self.column_starts)]
            lines = tuple(Line(column, blocks, self.rows[blocks]) for column, blocks in ordered)
            _LINES[self.column_starts] = lines
        return lines


_LINES: MutableMapping[Tensor, tuple[Line, ...]] = WeakTensorKeyDictionary()
"""The lines that begin at a tensor of starts, as long as that exists."""


def _starts(numbers: Tensor, count: int) -> Tensor:
    """Return how many of ``numbers``, which rise, are below each of 0 … ``count``, int64 ``[count + 1]``."""
    return torch.searchsorted(numbers, torch.arange(count + 1, device=numbers.device))


def _runs(starts: Tensor) -> list[tuple[int, tuple[int, int]]]:
    """Return the number and the two ends of each run that is not empty."""
    ends = starts.tolist()
    return [(number, (first, last)) for number, (first, last) in enumerate(pairwise(ends)) if last > first]


def to_dense(values: Tensor, pattern: Pattern) -> Tensor:
    """Return the matrix ``[R·b, C·b]`` of blocks ``[n, b, b]``."""
    size = values.shape[-1]
    grid = values.new_zeros(pattern.num_rows, pattern.num_columns, size, size)
    grid[pattern.rows, pattern.columns] = values
    return grid.transpose(1, 2).reshape(pattern.num_rows * size, pattern.num_columns * size)


def from_dense(matrix: Tensor, pattern: Pattern, size: int) -> Tensor:
    """Return the blocks ``[n, size, size]`` of a matrix ``[R·size, C·size]``."""
    grid = matrix.view(pattern.num_rows, size, pattern.num_columns, size)
    return grid[pattern.rows, :, pattern.columns]
