"""Updates of the pattern of a block-sparse matrix: prune the smallest blocks, and grow as many at other positions.

::

    blocks  |values| summed    5  1  7  2            prune 2: those of 1 and 2
    absent  score              .9 .1 .5 .3           grow 2:  those of .9 and .5, with zeros
                                                     -> kept and grown blocks in the order of their positions

The number of blocks does not change. Pruned positions do not grow again in the same update, as in Graphcore's dynamic
sparsity.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

_TINY: Final = 1e-30


class Rewiring(NamedTuple):
    """The new pattern of a matrix, and the origin of its blocks."""

    rows: Tensor
    """int64 ``[n]``, sorted by row, then column."""
    columns: Tensor
    source: Tensor
    """int64 ``[n]``: the previous index of each block; -1 for grown blocks."""

    def carry(self, tensor: Tensor) -> Tensor:
        """Return a tensor ``[n, ...]`` of blocks in the new order, with zeros for grown blocks."""
        moved = tensor.index_select(0, self.source.clamp(min=0))
        moved[self.source < 0] = 0
        return moved


def num_replaced(num_blocks: int, num_absent: int, ratio: float, progress: float) -> int:
    """Return the number of blocks that an update replaces: ``⌈⌈ratio · n⌉ · ½ (1 + cos π progress)⌉``, 0 at the end.

    Args:
        num_blocks: n, of the matrix.
        num_absent: number of positions without a block, which limits the result.
        ratio: share of blocks that the first update replaces.
        progress: completed share of the updates, from 0 to 1.
    """
    share = 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))
    return min(num_blocks, num_absent, math.ceil(round(math.ceil(round(ratio * num_blocks, 6)) * share, 6)))


def rewire(values: Tensor, rows: Tensor, columns: Tensor, growth: Tensor, count: int) -> Rewiring:
    """Return the pattern after replacing the ``count`` blocks with the smallest sums of absolute weights.

    New blocks grow at the absent positions with the largest ``growth``; ties are broken by row, then column.

    Args:
        values: ``[n, b, b]``.
        rows: integers ``[n]``.
        columns: integers ``[n]``.
        growth: ``[R, C]``, the growth criterion; values at present blocks are ignored.
        count: number of blocks, at most n and at most the number of absent positions.
    """
    num_columns = growth.shape[1]
    present = rows.long() * num_columns + columns.long()
    by_size = torch.argsort(values.abs().sum((1, 2)), stable=True)
    is_absent = torch.ones(growth.numel(), dtype=torch.bool, device=growth.device)
    is_absent[present] = False
    absent = is_absent.nonzero().squeeze(1)
    best = _largest(growth.flatten()[absent], count)
    kept = by_size[count:]
    positions, order = torch.cat((present[kept], absent[best])).sort()
    source = torch.cat((kept, torch.full_like(best, -1)))[order]
    return Rewiring(positions // num_columns, positions % num_columns, source)


def _largest(values: Tensor, count: int) -> Tensor:
    """Return the indices of the ``count`` largest of ``values`` ``[n]``, ascending; of equal values the first.

    This takes a fraction of the time of a stable sort.
    """
    if not count:
        return torch.empty(0, dtype=torch.int64, device=values.device)
    smallest = values.topk(count, sorted=False).values.min()
    above = (values > smallest).nonzero().squeeze(1)
    equal = (values == smallest).nonzero().squeeze(1)[: count - len(above)]
    return torch.cat((above, equal)).sort().values


def _normalized(scores: Tensor, random: torch.Generator) -> Tensor:
    means = scores.mean(1, keepdim=True) * scores.mean(0, keepdim=True)
    return scores / means.clamp(min=_TINY)


def _sampled(scores: Tensor, random: torch.Generator) -> Tensor:
    """Return keys whose top k are a sample without replacement, in proportion to the scores (Gumbel top-k)."""
    uniform = torch.rand(scores.shape, dtype=torch.float64, generator=random).clamp(min=_TINY).to(scores.device)
    return scores.double().log() - (-uniform.log()).log()


GROWTH: Final[dict[str, Callable[[Tensor, torch.Generator], Tensor]]] = {
    "rigl": lambda scores, random: scores,
    "rigl_norm": _normalized,
    "rigl_sample": _sampled,
    "random": lambda scores, random: torch.rand(scores.shape, dtype=torch.float64, generator=random).to(scores.device),
}
"""Growth criterion by the name of the update, given scores ``[R, C]``, of which ``random`` uses only the shape."""
