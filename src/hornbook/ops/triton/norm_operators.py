"""The operators of Triton's norms, for PyTorch's dispatcher, alone or behind a dropout and a residual addition."""

from typing import Any

import torch
from torch import Tensor

from hornbook.ops.native.kernels import note_sums
from hornbook.ops.operators import operator, shapes_of
from hornbook.ops.triton.programs import Drop

MOST_COLUMNS = 16384
"""Of a norm: a program holds a row in registers."""


@operator(device="any")
def triton_norm(
    x: Tensor,
    residual: Tensor | None,
    gain: Tensor | None,
    bias: Tensor | None,
    epsilon: float,
    centered: bool,
    keys: Tensor | None,
    site: int,
    probability: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``residual + drop(x)``, or ``x`` without a residual, and its norm; see ``norm_beside``.

    Returns:
        The norm, of the shape and dtype of ``x``; means and reciprocal deviations of the rows, fp32 ``[...]``; the sum,
        empty without a residual.
    """
    from hornbook.ops.triton.norms import norm

    drop = None if keys is None else Drop(keys, site, probability)
    return norm(x, residual, drop, gain, bias, epsilon, centered=centered)


@shapes_of("triton_norm")
def _(x: Tensor, residual: Tensor | None, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, rate = (x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), mean, rate, x.new_empty(0 if residual is None else x.shape)


@operator(device="any")
def triton_norm_gradients(
    gradient: Tensor,
    beside: Tensor | None,
    x: Tensor,
    gain: Tensor | None,
    mean: Tensor,
    rate: Tensor,
    centered: bool,
    keys: Tensor | None,
    site: int,
    probability: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of ``x``, plus ``beside`` if given, of what was dropped before ``x``, of gain and bias.

    Returns:
        The gradient of ``x``; that behind it, empty without ``keys``; those of gain and bias, and the sums over the
        rows of the second gradient, or of the first without ``keys``, fp32 ``[D]``.
    """
    from hornbook.ops.triton.norms import norm_gradients

    drop = None if keys is None else Drop(keys, site, probability)
    of_x, of_dropped, sums = norm_gradients(gradient, beside, x, gain, mean, rate, drop, centered=centered)
    of_gain, of_bias, of_rows = sums
    return of_x, of_dropped, of_gain, of_bias, of_rows


@shapes_of("triton_norm_gradients")
def _(
    gradient: Tensor, beside: Tensor | None, x: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    gain, bias, sums = (x.new_empty(x.shape[-1], dtype=torch.float32) for _ in range(3))
    return x.new_empty(x.shape), x.new_empty(0 if others[4] is None else x.shape), gain, bias, sums


def norm_beside(
    x: Tensor,
    gain: Tensor | None,
    bias: Tensor | None,
    epsilon: float,
    *,
    centered: bool,
    residual: Tensor | None = None,
    drop: Drop | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``x``, or ``residual + drop(x)``, and its norm as outputs of one operator, which adds their gradients.

    Args:
        x: ``[..., D]`` with at most ``MOST_COLUMNS`` columns.
        gain: ``[D]``, of any dtype; None for 1.
        bias: ``[D]``; None for 0.
        epsilon: added to the variance, or the mean square.
        centered: layer norm (Ba et al. 2016) rather than RMS norm (Zhang and Sennrich 2019).
        residual: of the shape and dtype of ``x``.
        drop: only with a residual.
    """
    added, normed = _Norm.apply(x, residual, drop, gain, bias, epsilon, centered)  # type: ignore[no-untyped-call]
    return added, normed


class _Norm(torch.autograd.Function):
    """Notes the sums of the gradient of ``x`` over the rows, for the bias of the layer that computed it."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        drop: Drop | None,
        gain: Tensor | None,
        bias: Tensor | None,
        epsilon: float,
        centered: bool,
    ) -> tuple[Tensor, Tensor]:
        dropout = (None, 0, 0.0) if drop is None else drop
        y, *statistics, added = triton_norm(x, residual, gain, bias, epsilon, centered, *dropout)
        ctx.save_for_backward(x if residual is None else added, gain, *statistics, dropout[0])
        ctx.settings = (centered, *dropout[1:])
        ctx.adds, ctx.bias_dtype = residual is not None, None if bias is None else bias.dtype
        ctx.set_materialize_grads(False)
        return added if ctx.adds else x.view_as(x), y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        beside, gradient = gradients
        x, gain, *statistics, keys = ctx.saved_tensors
        if gradient is None:  # of a norm that nothing uses
            gradient = torch.zeros_like(x)
        centered, *dropout = ctx.settings
        found = triton_norm_gradients(gradient, beside, x, gain, *statistics, centered, keys, *dropout)
        of_sum, of_dropped, of_gain, of_bias, sums = found
        of_x = of_sum if keys is None else of_dropped
        if not torch.compiler.is_compiling():
            note_sums(of_x, sums)
        of_affine = (
            None if gain is None else of_gain.to(gain.dtype),
            None if ctx.bias_dtype is None else of_bias.to(ctx.bias_dtype),
        )
        return of_x, of_sum if ctx.adds else None, None, *of_affine, None, None
