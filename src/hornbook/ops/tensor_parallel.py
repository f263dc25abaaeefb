"""Operators of layers whose weights are split over ranks (Shoeybi et al. 2019, Megatron-LM, section 3).

::

    x, the same on all ranks --enter--> x W₁ᵀ, columns of this rank --> f --> h W₂ᵀ, a summand --leave--> y, the same
                                        W₁ split by outputs                   W₂ split by inputs
      backward: sum over ranks <--enter                                       leave--> the gradient unchanged

So a pair of layers needs one sum over the ranks forward and one backward. The types of the weights tell how they are
split (`hornbook.parallel.ranks`), so the modules of a model do not depend on it.

With sequence parallelism (Korthikanti et al. 2022, section 4.2), a rank holds a slice of the tokens outside of the
pairs. The sum over the ranks becomes two operations that together send as many bytes::

    x, tokens of this rank --all-gather--> x W₁ᵀ --> f --> h W₂ᵀ --reduce-scatter--> y, tokens of this rank
      backward:        reduce-scatter                                 all-gather

The first layer keeps only the slice for its backward pass, where it gathers the tokens again. Compiled code keeps the
gathered tokens: the compiler finds that both passes gather the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from hornbook.parallel.ranks import Cut, cut_of, is_cut, local


def enter(x: Tensor, cut: Cut) -> Tensor:
    """Return ``x``, which is the same on all ranks; the backward pass sums its gradient over the ranks."""
    y: Tensor = _Enter.apply(x, cut.group)  # type: ignore[no-untyped-call]
    return y


def leave(x: Tensor, cut: Cut) -> Tensor:
    """Return the sum of ``x`` over the ranks, the same on all of them; each summand gets the gradient of the sum.

    With sequence parallelism, return only the tokens of this rank, ``[B, t, ...]`` for ``[B, T, ...]``.
    """
    slices = current.slices
    y: Tensor = _Leave.apply(x, cut.group) if slices is None else _Scatter.apply(x, slices)  # type: ignore[no-untyped-call]
    return y


class Slices(NamedTuple):
    """The split of a micro-batch ``[B, T, ...]`` along T into a slice ``[B, t, ...]`` for each rank.

    If the number of ranks does not divide T, the last slices are padded with zeros, which are never used.
    """

    num_tokens: int
    """T."""
    rank: int
    size: int
    group: dist.ProcessGroup
    is_fused: bool = False
    """Whether the compiler fuses products with the exchanges before or behind them."""
    is_ordered: bool = True
    """Whether all tokens are ``[B, T, ...]``; otherwise, the slices are one after the other, ``[n B, t, ...]``."""

    @property
    def width(self) -> int:
        """Tokens per slice, t."""
        return -(-self.num_tokens // self.size)

    def own(self, x: Tensor) -> Tensor:
        """Return this rank's slice of ``[B, T, ...]``; its gradient is zero for the other tokens."""
        return self.padded(x).narrow(1, self.rank * self.width, self.width)

    def gather(self, x: Tensor) -> Tensor:
        """Return all tokens, ``[B, T, ...]``, gathered from the ranks' slices, without a gradient."""
        whole = gathered(x.contiguous(), self.group, self.size)
        if not self.is_ordered:
            return whole
        if len(x) == 1 and not torch.compiler.is_compiling():
            whole = whole.flatten(0, 1).unsqueeze(0)
        else:
            whole = torch.cat(whole.chunk(self.size), 1)
        return whole.narrow(1, 0, self.num_tokens)

    def sum_own(self, x: Tensor) -> Tensor:
        """Return this rank's slice of the sum of ``[B, T, ...]`` over the ranks, without a gradient."""
        if not self.is_ordered:
            parts = x.contiguous()
        elif len(x) == 1 and not torch.compiler.is_compiling():
            parts = torch.unflatten(self.padded(x).contiguous(), 1, (self.size, self.width)).squeeze(0)
        else:
            parts = torch.cat(self.padded(x).chunk(self.size, 1))
        return _scattered(parts, self.group, self.size)

    def enter(self, x: Tensor) -> Tensor:
        """Return all tokens, gathered from the slices; the backward pass sums the ranks' gradients."""
        y: Tensor = _Gather.apply(x, self, True)  # type: ignore[no-untyped-call]
        return y

    def whole(self, x: Tensor) -> Tensor:
        """Return all tokens, gathered from the slices; their gradient is the same on all ranks."""
        y: Tensor = _Gather.apply(x, self, False)  # type: ignore[no-untyped-call]
        return y

    def padded(self, x: Tensor) -> Tensor:
        """Return ``[B, n t, ...]``: all tokens ``[B, T, ...]``, and zeros."""
        missing = self.width * self.size - self.num_tokens
        return torch.cat([x, x.new_zeros(len(x), missing, *x.shape[2:])], 1) if missing else x


class _Current:
    slices: Slices | None = None
    """Those of the current embedding or block, set by `hornbook.engine.parallelize`; None: all tokens."""

    @contextmanager
    def having(self, slices: Slices | None) -> Iterator[None]:
        """Set ``slices`` in the ``with`` block."""
        before, self.slices = self.slices, slices
        try:
            yield
        finally:
            self.slices = before


current = _Current()
"""What layers see of the split of tokens: not a context variable, which PyTorch's compiler cannot read."""


class Exchange(NamedTuple):
    """What ranks send before or behind a product with a split weight, in an operator with its own backward pass.

    ::

        x --given--> product --summed--> y
        dx <--summed_gradient-- product <--given_gradient-- dy

    Sums without sequence parallelism change what they are given.
    """

    cut: Cut | None = None
    """None: the weight is whole, and nothing is sent."""
    is_first: bool = True
    """Whether the weight is whole or split by outputs, not by inputs."""
    slices: Slices | None = None

    def given(self, x: Tensor) -> Tensor:
        """Return the input of the product."""
        return x if self.slices is None or not self.is_first else self.slices.gather(x)

    def summed(self, y: Tensor) -> Tensor:
        """Return the result of the layer, given that of the product, without a bias if it is a summand."""
        return y if self.is_first else self._sum(y)

    def given_gradient(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the product's result."""
        return gradient if self.slices is None or self.is_first else self.slices.gather(gradient)

    def summed_gradient(self, of_x: Tensor) -> Tensor:
        """Return the gradient of the layer's input, given that of the product's."""
        return self._sum(of_x) if self.is_first else of_x

    def _sum(self, x: Tensor) -> Tensor:
        if self.slices is not None:
            return self.slices.sum_own(x)
        return x if self.cut is None else self.cut.sum(x)


def exchange_of(weight: Tensor) -> Exchange:
    """Return what the ranks of a layer's ``weight`` send now."""
    if not is_cut(weight):
        return Exchange()
    cut = cut_of(weight)
    return Exchange(cut, cut.dimension < weight.dim() - 1, current.slices)


def cut_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x Wᵀ + b`` in the dtype of ``x``, as `hornbook.ops.layers.linear` does.

    With sequence parallelism, a layer that is split by outputs maps a slice of the tokens to all tokens, and a layer
    that is split by inputs all tokens to a slice.

    Args:
        x: ``[..., num_in]``; the rank's share of the last dimension if the weight is split by inputs.
        weight: ``[num_out, num_in]`` or a stack of these, split by outputs or by inputs.
        bias: split if the weight is split by outputs, otherwise whole.

    Returns:
        ``[..., num_out]``; the rank's share of the last dimension if the weight is split by outputs.
    """
    cut, matrix = cut_of(weight), local(weight).flatten(0, -2).to(x.dtype)
    offset = None if bias is None else local(bias).flatten().to(x.dtype)
    slices, is_first = current.slices, cut.dimension < weight.dim() - 1
    if slices is not None and slices.is_fused:
        y = _fused_linear(x, matrix, slices, gathers=is_first)
        return y if offset is None else y + offset
    if is_first:
        if slices is None:
            return functional.linear(enter(x, cut), matrix, offset)
        gathered: Tensor = _GatherLinear.apply(x, matrix, offset, slices)  # type: ignore[no-untyped-call]
        return gathered
    y = leave(functional.linear(x, matrix), cut)
    return y if offset is None else y + offset


def _fused_linear(x: Tensor, matrix: Tensor, slices: Slices, *, gathers: bool) -> Tensor:
    """Return ``x Wᵀ`` such that PyTorch's compiler fuses the product with the exchange, forward and backward.

    It finds no product with a bias. Nor does it if views of ``[B · T, ...]`` as ``[B, T, ...]`` and back, such as those
    around attention's kernels, cancel out: PyTorch 2.13 then takes another tensor for the matrix, and fails. So tokens
    are ``[B, n, t, ...]`` here, that is, n slices of one row each.
    """
    y: Tensor
    rows = slices._replace(num_tokens=slices.size)
    if gathers:
        y = _GatherLinear.apply(x.unsqueeze(1), matrix, None, rows)  # type: ignore[no-untyped-call]
        return y.flatten(1, 2).narrow(1, 0, slices.num_tokens)
    parts = torch.unflatten(slices.padded(x), 1, (slices.size, slices.width))
    y = _Scatter.apply(functional.linear(parts, matrix), rows)  # type: ignore[no-untyped-call]
    return y.squeeze(1)


def cut_rows(indices: Tensor, table_VD: Tensor) -> Tensor:
    """Return rows ``[..., D]`` of a table whose rows are split: each rank looks up its rows, and the ranks sum.

    DTensor's embedding would give each rank the gradient of the whole table.
    """
    cut, rows = cut_of(table_VD), local(table_VD).float()
    own = indices - cut.rank * len(rows)
    absent = (own < 0) | (own >= len(rows))
    found = functional.embedding(own.masked_fill(absent, 0), rows)
    return leave(found.masked_fill(absent.unsqueeze(-1), 0.0), cut)


def gather_columns(x: Tensor, cut: Cut, dtype: torch.dtype) -> Tensor:
    """Return the ranks' tensors ``[..., n]`` side by side and in a dtype, ``[..., ranks · n]``, without a gradient."""
    size = dist.get_world_size(cut.group)
    parts = gathered(x.contiguous(), cut.group, size).view(size, *x.shape).movedim(0, -2)
    return parts.to(dtype, memory_format=torch.contiguous_format).flatten(-2)  # one copy, also without a conversion


# The collectives of compiled code: of those of `torch.distributed`, which change a tensor in place, PyTorch 2.13 made
# wrong gradients, and it fuses only these with products.
_TRACED = torch.ops._c10d_functional
_gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before PyTorch 2.13
_scatter_from = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum of ``x`` over the ranks."""
    total: Tensor
    if torch.compiler.is_compiling():
        total = _TRACED.wait_tensor(_TRACED.all_reduce(x.contiguous(), "sum", group.group_name))
    else:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
    return total


def gathered(x: Tensor, group: dist.ProcessGroup, size: int) -> Tensor:
    """Return the contiguous tensors ``x`` of all ranks, concatenated along the first dimension."""
    whole: Tensor
    if torch.compiler.is_compiling():
        whole = _TRACED.wait_tensor(_TRACED.all_gather_into_tensor(x, size, group.group_name))
    else:
        whole = x.new_empty(size * len(x), *x.shape[1:])
        _gather_into(whole, x, group=group)
    return whole


def _scattered(x: Tensor, group: dist.ProcessGroup, size: int) -> Tensor:
    """Return this rank's part along the first dimension of the sum of contiguous ``x`` over the ranks."""
    own: Tensor
    if torch.compiler.is_compiling():
        own = _TRACED.wait_tensor(_TRACED.reduce_scatter_tensor(x, "sum", size, group.group_name))
    else:
        own = x.new_empty(len(x) // size, *x.shape[1:])
        if x.is_cuda:
            _scatter_from(own, x, group=group)
        else:  # gloo sums a list in another order, which runs that resume keep; NCCL copies one and sums it the same
            dist.reduce_scatter(own, list(x.chunk(size)), group=group)
    return own


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _summed(gradients[0], ctx.group), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slices: Slices, is_summand: bool) -> Tensor:
        ctx.back = slices.sum_own if is_summand else slices.own
        return slices.gather(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradients[0]), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slices: Slices) -> Tensor:
        ctx.slices = slices
        return slices.sum_own(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.slices.gather(gradients[0]), None


class _GatherLinear(torch.autograd.Function):
    """``x Wᵀ + b`` of all tokens, keeping only this rank's slice ``x`` for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, slices: Slices) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.slices = slices
        return functional.linear(slices.gather(x), weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (x, weight), slices = gradients, ctx.saved_tensors, ctx.slices
        of_x = slices.sum_own(gradient @ weight)
        rows = gradient.flatten(0, -2)
        of_weight = rows.t() @ slices.gather(x).flatten(0, -2)
        return of_x, of_weight, rows.sum(0) if ctx.needs_input_grad[2] else None, None
