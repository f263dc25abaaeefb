"""The columns of an output projection, all or some, and the search for the largest logits."""

import math
from typing import NamedTuple

from torch import Tensor

from hornbook.parallel.ranks import Cut

_BLOCK = 64  # divides the rows of a table, padded as it is


class Columns(NamedTuple):
    """The columns of the output projection that a rank computes."""

    weight: Tensor
    """``[columns, D]``."""
    bias: Tensor | None
    """``[num_real]``."""
    num_real: int
    """Number of columns without padding."""
    first: int = 0
    """The token id of the first column."""
    cut: Cut | None = None
    cap: float | None = None
    """Soft limit of the logits, ``cap · tanh(logit / cap)`` (Gemma 2, 2024, section 2)."""

    def parts(self, chunks: int) -> "list[Columns]":
        """Return the columns in at most ``chunks`` parts, whose sizes are multiples of 64 except for the last."""
        size = -(-len(self.weight) // (chunks * _BLOCK)) * _BLOCK
        found = []
        for start in range(0, len(self.weight), size):
            weight = self.weight[start : start + size]
            bias = None if self.bias is None else self.bias[start : start + size]
            num_real = min(max(self.num_real - start, 0), len(weight))
            found.append(Columns(weight, bias, num_real, self.first + start, self.cut, self.cap))
        return found


def first_of_ranks(tokens: Tensor, is_best: Tensor, cut: Cut) -> Tensor:
    """Return the smallest of the ranks' tokens for which ``is_best``, found by a maximum over the ranks."""
    return -cut.largest((-tokens).masked_fill(~is_best, -(1 << 62)))


def first_largest(x_CV: Tensor) -> Tensor:
    """Return ``x.argmax(1)``, four times as fast on a CPU: find the block of columns first, then the column in it.

    On a CPU, ``amax`` is vectorized and ``argmax`` is not.
    """
    size = math.gcd(_BLOCK, x_CV.shape[1])
    blocks = x_CV.view(len(x_CV), -1, size)
    best = blocks.amax(2).argmax(1, keepdim=True)
    inside = blocks.take_along_dim(best.unsqueeze(2), 1).squeeze(1).argmax(1)
    return best.squeeze(1) * size + inside
