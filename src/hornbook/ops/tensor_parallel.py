"""Layers whose weights are cut over ranks, as functions on tensors (Shoeybi et al. 2019, Megatron-LM, section 3).

::

    x, the same on all ranks --enter--> x W₁ᵀ, columns of this rank --> f --> h W₂ᵀ, a summand --leave--> y, the same
                                        W₁ cut by outputs                     W₂ cut by inputs
      backward: sum over ranks <--enter                                       leave--> the gradient as it is

So a pair of layers costs one sum over the ranks forward and one backward. The weights say how they are cut
(`hornbook.parallel.cuts`), so the modules of a model do not know.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from hornbook.parallel.cuts import Cut, cut_of, local


def enter(x: Tensor, cut: Cut) -> Tensor:
    """Return ``x``, which is the same on all ranks; its gradient is the sum over the ranks."""
    y: Tensor = _Enter.apply(x, cut.group)  # type: ignore[no-untyped-call]
    return y


def leave(x: Tensor, cut: Cut) -> Tensor:
    """Return the sum of ``x`` over the ranks, the same on all of them; each summand gets the gradient of the sum."""
    y: Tensor = _Leave.apply(x, cut.group)  # type: ignore[no-untyped-call]
    return y


def cut_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x Wᵀ + b`` in the dtype of ``x``, as `hornbook.ops.layers.linear` does.

    Args:
        x: ``[..., num_in]``; the rank's share of the last dimension where the weight is cut by inputs.
        weight: ``[num_out, num_in]`` or a stack of such, cut by outputs or by inputs.
        bias: cut like the outputs; whole where the weight is cut by inputs.

    Returns:
        ``[..., num_out]``; the rank's share of the last dimension where the weight is cut by outputs.
    """
    cut, matrix = cut_of(weight), local(weight).flatten(0, -2).to(x.dtype)
    offset = None if bias is None else local(bias).flatten().to(x.dtype)
    if cut.dimension < weight.dim() - 1:
        return functional.linear(enter(x, cut), matrix, offset)
    y = leave(functional.linear(x, matrix), cut)
    return y if offset is None else y + offset


def cut_rows(indices: Tensor, table_VD: Tensor) -> Tensor:
    """Return the rows of a table whose rows are cut, ``[..., D]``: each rank looks up its own, zero for the others.

    DTensor's own look-up would give each rank the gradient of the whole table.
    """
    cut, rows = cut_of(table_VD), local(table_VD)
    own = indices - cut.rank * len(rows)
    absent = (own < 0) | (own >= len(rows))
    found = functional.embedding(own.masked_fill(absent, 0), rows)
    return leave(found.masked_fill(absent.unsqueeze(-1), 0.0), cut)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
