"""The columns of an output projection, all or some of them, and which of them are predictions."""

import math
from typing import NamedTuple

from torch import Tensor

from hornbook.parallel.ranks import Cut

_BLOCK = 64  # divides the rows of a table, padded as it is


class Columns(NamedTuple):
    """Columns of the output projection as a rank computes them."""

    weight: Tensor
    """``[columns, D]``."""
    bias: Tensor | None
    """``[num_real]``."""
    num_real: int
    """Columns that exist; those after it are padding."""
    first: int = 0
    """The token of the first column."""
    cut: Cut | None = None

    def parts(self, chunks: int) -> "list[Columns]":
        """Return them in so many parts, or fewer, each a multiple of 64 but for the last one."""
        size = -(-len(self.weight) // (chunks * _BLOCK)) * _BLOCK
        found = []
        for start in range(0, len(self.weight), size):
            weight = self.weight[start : start + size]
            bias = None if self.bias is None else self.bias[start : start + size]
            num_real = min(max(self.num_real - start, 0), len(weight))
            found.append(Columns(weight, bias, num_real, self.first + start, self.cut))
        return found


def first_of_ranks(tokens: Tensor, is_best: Tensor, cut: Cut) -> Tensor:
    """Return the smallest of the ranks' tokens that are best, as a maximum."""
    return -cut.largest((-tokens).masked_fill(~is_best, -(1 << 62)))


def first_largest(x_CV: Tensor) -> Tensor:
    """Return ``x.argmax(1)``, on a CPU four times as fast: first the block of columns, then the column in it.

    There ``amax`` computes many columns at once and ``argmax`` one after the other.
    """
    size = math.gcd(_BLOCK, x_CV.shape[1])
    blocks = x_CV.view(len(x_CV), -1, size)
    best = blocks.amax(2).argmax(1, keepdim=True)
    inside = blocks.take_along_dim(best.unsqueeze(2), 1).squeeze(1).argmax(1)
    return best.squeeze(1) * size + inside
