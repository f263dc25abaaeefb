"""The pattern of a block-sparse matrix: the positions of its blocks and indices derived from them.

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
    """The blocks of a block row or a block column."""

    number: int
    """Index of the row or column."""
    blocks: slice | Tensor
    """Their indices."""
    others: Tensor
    """int64 ``[k]``: the column of each block of a row, the row of each block of a column."""


class Pattern(NamedTuple):
    """The pattern of a matrix of R x C blocks: int64 tensors, which custom operators accept as a list."""

    rows: Tensor
    """``[n]``: the block row of each block, ordered by rows, then columns."""
    columns: Tensor
    """``[n]``: the block column of each block."""
    row_starts: Tensor
    """``[R + 1]``: the index of each row's first block, and n."""
    column_starts: Tensor
    """``[C + 1]``: the index in ``column_order`` of each column's first block, and n."""
    column_order: Tensor
    """``[n]``: the indices of the blocks, ordered by columns, then rows."""

    @classmethod
    def of(cls, rows: Tensor, columns: Tensor, num_rows: int, num_columns: int) -> "Pattern":
        """Return the pattern of blocks at ``rows`` and ``columns``, integers ``[n]``, ordered by row, then column."""
        rows, columns = rows.long(), columns.long()
        order = torch.argsort(columns, stable=True)
        return cls(rows, columns, _starts(rows, num_rows), _starts(columns[order], num_columns), order)

    @property
    def num_rows(self) -> int:
        """The number of block rows, R."""
        return len(self.row_starts) - 1

    @property
    def num_columns(self) -> int:
        """The number of block columns, C."""
        return len(self.column_starts) - 1

    @property
    def most_in_a_row(self) -> int:
        """The number of blocks of the row that has most; cached, since the host waits for it."""
        if (most := _MOST.get(self.row_starts)) is None:
            most = _MOST[self.row_starts] = int(self.row_starts.diff().max())
        return most

    def by_row(self) -> tuple[Line, ...]:
        """Return the rows that have blocks; cached."""
        if (lines := _LINES.get(self.row_starts)) is None:
            runs = _runs(self.row_starts)
            lines = tuple(Line(row, slice(*ends), self.columns[slice(*ends)]) for row, ends in runs)
            _LINES[self.row_starts] = lines
        return lines

    def by_column(self) -> tuple[Line, ...]:
        """Return the columns that have blocks; cached."""
        if (lines := _LINES.get(self.column_starts)) is None:
            ordered = [(column, self.column_order[slice(*ends)]) for column, ends in _runs(self.column_starts)]
            lines = tuple(Line(column, blocks, self.rows[blocks]) for column, blocks in ordered)
            _LINES[self.column_starts] = lines
        return lines


def fault_of(rows: Tensor, columns: Tensor, num_rows: int, num_columns: int) -> str | None:
    """Return why ``rows`` and ``columns``, integers ``[n]``, cannot be positions of blocks; None if they can.

    They must be inside of ``num_rows`` x ``num_columns`` blocks and ordered by row, then column, without duplicates.
    """
    if not len(rows):
        return None
    rows, columns = rows.long(), columns.long()
    for noun, numbers, count in (("row", rows, num_rows), ("column", columns, num_columns)):
        lowest, highest = (int(end) for end in torch.aminmax(numbers))
        if lowest < 0 or highest >= count:
            outside = lowest if lowest < 0 else highest
            return f"a block is in block {noun} {outside}, expected 0 to {count - 1}"
    if bool((torch.diff(rows * num_columns + columns) <= 0).any()):
        return "blocks are not ordered by row, then column, or two have the same position"
    return None


_LINES: MutableMapping[Tensor, tuple[Line, ...]] = WeakTensorKeyDictionary()
"""The lines of each tensor of starts, as long as it exists."""
_MOST: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()
"""The same of ``most_in_a_row``."""


def _starts(numbers: Tensor, count: int) -> Tensor:
    """Return how many of ``numbers``, in ascending order, are below each of 0 … ``count``, int64 ``[count + 1]``."""
    return torch.searchsorted(numbers, torch.arange(count + 1, device=numbers.device))


def _runs(starts: Tensor) -> list[tuple[int, tuple[int, int]]]:
    """Return the number, begin and end of each run that is not empty."""
    ends = starts.tolist()
    return [(number, (first, last)) for number, (first, last) in enumerate(pairwise(ends)) if last > first]


def to_dense(values: Tensor, pattern: Pattern) -> Tensor:
    """Return the dense matrix ``[R·b, C·b]`` of blocks ``[n, b, b]``."""
    size = values.shape[-1]
    grid = values.new_zeros(pattern.num_rows, pattern.num_columns, size, size)
    grid[pattern.rows, pattern.columns] = values
    return grid.transpose(1, 2).reshape(pattern.num_rows * size, pattern.num_columns * size)


def from_dense(matrix: Tensor, pattern: Pattern, size: int) -> Tensor:
    """Return the blocks ``[n, size, size]`` of a matrix ``[R·size, C·size]``."""
    grid = matrix.view(pattern.num_rows, size, pattern.num_columns, size)
    return grid[pattern.rows, :, pattern.columns]
