"""The key-value cache of a batch of growing texts: one block of memory per layer, allocated when it first attends.

Texts are aligned on the right, so a new token takes one column in all of them; each starts where its length requires::

    columns    0  1  2  3  4  5  6 ...  capacity
    row 0      .  .  a  b  c  d         start 2       position of a token = its column - the row's start
    row 1      e  f  g  h  i  j         start 0
                            end 6 --^

Rows of different lengths require a mask over the columns before each start; equal ones do not. The price of shared
columns: a row that restarts further right leaves a gap, so the cache of texts that outgrow the model's positions has
half as many columns again, and moves its content to the left when they are used up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Cache:
    """Keys and values of all layers; its tensors keep their addresses from the first token to the last.

    Args:
        lengths: number of initial tokens of each row, whose columns are still to be written.
        capacity: number of columns.
        dtype: dtype of keys and values.
        device: device of keys and values.

    Attributes:
        starts: the column of each row's first token.
        end: the column after the last.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.tensors: dict[nn.Module, Tensor] = {}
        """``[B, 2, H, capacity, K]`` of each module that attends, in their order."""
        self.capacity, self.end = capacity, max(lengths)
        self._most_rows, self._dtype = len(lengths), dtype
        self.starts = [self.end - length for length in lengths]
        self._columns_C = torch.arange(capacity, device=device)
        self.in_use: dict[nn.Module, Tensor] = {}
        """The rows of these tensors that are left."""
        self._arrange()

    def append(self, restarts: Mapping[int, int]) -> None:
        """Add a column for the next token of each row.

        Args:
            restarts: rows that restart, and the number of tokens they then have, including the new one.
        """
        for row, length in restarts.items():
            self.starts[row] = self.end + 1 - length
        is_full = self.end == self.capacity
        if is_full:
            distance = min(self.starts)
            assert distance > 0, "a full cache with more columns than positions has an unused first column"
            for tensor in self.in_use.values():
                tensor[:, :, :, : self.end - distance] = tensor[:, :, :, distance : self.end].clone()
            self.end -= distance
            self.starts = [start - distance for start in self.starts]
        self.end += 1
        if restarts or is_full:
            self._arrange()
        else:
            self.positions_B1 += 1

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order; they move to the front."""
        for owner, tensor in self.tensors.items():
            tensor[: len(rows)] = tensor[list(rows)]
            self.in_use[owner] = tensor[: len(rows)]
        self.starts = [self.starts[row] for row in rows]
        self._arrange()

    def columns(self, mask: Tensor | None) -> "Columns":
        """Return the columns from the first that any row uses to the last; see ``KeyValues`` for ``mask``."""
        return Columns(self, self._first, mask)

    def columns_of(self, row: int) -> "Columns":
        """Return the columns of one row."""
        return Columns(self, self.starts[row], None, row)

    def mask(self) -> Tensor | None:
        """Return the additive mask ``[B, 1, 1, S]``, 0 or -inf, for queries in the last column; None if all 0."""
        if self._mask_B11C is None:
            return None
        return self._mask_B11C.narrow(3, self._first, self.end - self._first)

    def of(self, owner: nn.Module, num_heads: int, head_size: int) -> Tensor:
        """Return the ``[B, 2, H, capacity, K]`` of a module, at first zeros."""
        if owner not in self.tensors:
            shape = (self._most_rows, 2, num_heads, self.capacity, head_size)
            with torch.inference_mode(False):  # it is changed outside of the forward pass, too
                self.tensors[owner] = torch.zeros(shape, dtype=self._dtype, device=self._columns_C.device)
            self.in_use[owner] = self.tensors[owner][: len(self.starts)]
        return self.in_use[owner]

    def _arrange(self) -> None:
        """Update the tensors that depend on the starts."""
        device, dtype = self._columns_C.device, self._dtype
        starts_B1 = torch.tensor(self.starts, device=device).unsqueeze(1)
        self.positions_B1 = self.end - 1 - starts_B1
        """The position of the token in the last column of each row, int64."""
        self._first = min(self.starts)
        self._mask_B11C = None
        if max(self.starts) > self._first:
            hidden_BC = self._columns_C < starts_B1
            mask_BC = torch.zeros(hidden_BC.shape, dtype=dtype, device=device).masked_fill_(hidden_BC, -math.inf)
            self._mask_B11C = mask_BC[:, None, None]


@dataclass(frozen=True)
class Columns:
    """What a forward pass of new tokens sees of a cache, a `hornbook.model.attention.KeyValues`."""

    cache: Cache
    first: int
    """Number of the first column."""
    mask: Tensor | None
    row: int | None = None
    """The only row; None: all rows."""

    def of(self, owner: nn.Module, num_heads: int, head_size: int) -> Tensor:
        """Return the keys and values of a module, ``[B, 2, H, S, K]``."""
        tensor = self.cache.of(owner, num_heads, head_size)
        if self.row is not None:
            tensor = tensor[self.row : self.row + 1]
        return tensor.narrow(3, self.first, self.cache.end - self.first)

    def of_all(self) -> list[Tensor]:
        """Return the keys and values in all rows of each module that has attended, in their order."""
        length = self.cache.end - self.first
        return [tensor.narrow(3, self.first, length) for tensor in self.cache.in_use.values()]
