"""The operators of Triton's norms, for PyTorch's dispatcher, alone or behind a dropout and a residual addition."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hornbook.ops.native.kernels import note_sums
from hornbook.ops.operators import operator, shapes_of

MOST_COLUMNS = 16384
"""Of a norm: a program holds a row in registers."""


class Drop(NamedTuple):
    """A dropout; see `hornbook.ops.dropout.dropout`."""

    keys: Tensor
    site: int
    probability: float


@operator(device="any")
def triton_norm(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, epsilon: float, centered: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm of rows: layer norm if ``centered``, else RMS norm; see `norm_beside`.

    Returns:
        The norm, of the shape and dtype of ``x``; means and reciprocal deviations of the rows, fp32 ``[...]``.
    """
    from hornbook.ops.triton.norms import norm

    return norm(x, gain, bias, epsilon, centered=centered)


@shapes_of("triton_norm")
def _(x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    mean, rate = (x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), mean, rate


@operator(device="any")
def triton_norm_gradients(
    gradient: Tensor, beside: Tensor | None, x: Tensor, gain: Tensor | None, mean: Tensor, rate: Tensor, centered: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``x``, plus ``beside`` if given, and of gain and bias, both fp32 ``[D]``."""
    from hornbook.ops.triton.norms import norm_gradients

    of_x, _, of_gain, of_bias = norm_gradients(gradient, beside, x, gain, mean, rate, None, centered=centered)
    return of_x, of_gain, of_bias


@shapes_of("triton_norm_gradients")
def _(gradient: Tensor, beside: Tensor | None, x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    gain, bias = (x.new_empty(x.shape[-1], dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), gain, bias


@operator(device="any")
def triton_add_norm(
    x: Tensor,
    residual: Tensor,
    gain: Tensor | None,
    bias: Tensor | None,
    epsilon: float,
    centered: bool,
    keys: Tensor | None,
    site: int,
    probability: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``residual + drop(x)`` and its norm, in one pass; arguments as for ``add_norm``, no dropout without keys.

    Returns:
        Sum and norm, of the shape and dtype of ``x``; means and reciprocal deviations of the rows, fp32 ``[...]``.
    """
    from hornbook.ops.triton.norms import add_norm as compute

    drop = None if keys is None else Drop(keys, site, probability)
    return compute(x, residual, drop, gain, bias, epsilon, centered=centered)


@shapes_of("triton_add_norm")
def _(x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, rate = (x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), x.new_empty(x.shape), mean, rate


@operator(device="any")
def triton_add_norm_gradients(
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
    """Return the gradients of the sum ``x``, plus ``beside`` if given, and of what was added to the residual.

    Returns:
        Both gradients, the second empty without ``keys``, since it is the first; those of gain and bias, and the sums
        over the rows of the second gradient, fp32 ``[D]``.
    """
    from hornbook.ops.triton.norms import norm_gradients

    drop = None if keys is None else Drop(keys, site, probability)
    of_x, of_added, *sums = norm_gradients(gradient, beside, x, gain, mean, rate, drop, centered=centered, adds=True)
    of_gain, of_bias, added = sums
    return of_x, of_added, of_gain, of_bias, added


@shapes_of("triton_add_norm_gradients")
def _(
    gradient: Tensor, beside: Tensor | None, x: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    gain, bias, added = (x.new_empty(x.shape[-1], dtype=torch.float32) for _ in range(3))
    return x.new_empty(x.shape), x.new_empty(0 if others[4] is None else x.shape), gain, bias, added


def norm_beside(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, epsilon: float, *, centered: bool
) -> tuple[Tensor, Tensor]:
    """Return ``x`` and its norm as outputs of one operator, which adds their gradients.

    Args:
        x: ``[..., D]`` with at most ``MOST_COLUMNS`` columns.
        gain: ``[D]``, of any dtype; None for 1.
        bias: ``[D]``; None for 0.
        epsilon: added to the variance, or the mean square.
        centered: layer norm (Ba et al. 2016) rather than RMS norm (Zhang and Sennrich 2019).
    """
    same, normed = _Norm.apply(x, gain, bias, epsilon, centered)  # type: ignore[no-untyped-call]
    return same, normed


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor | None, bias: Tensor | None, epsilon: float, centered: bool
    ) -> tuple[Tensor, Tensor]:
        y, *statistics = triton_norm(x, gain, bias, epsilon, centered)
        ctx.save_for_backward(x, gain, *statistics)
        ctx.centered, ctx.bias_dtype = centered, None if bias is None else bias.dtype
        ctx.set_materialize_grads(False)
        return x.view_as(x), y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        beside, gradient = gradients
        if gradient is None:
            return beside, *[None] * 4
        x, gain, *statistics = ctx.saved_tensors
        of_x, of_gain, of_bias = triton_norm_gradients(gradient, beside, x, gain, *statistics, ctx.centered)
        of_affine = (
            None if gain is None else of_gain.to(gain.dtype),
            None if ctx.bias_dtype is None else of_bias.to(ctx.bias_dtype),
        )
        return of_x, *of_affine, None, None


def add_norm(
    x: Tensor,
    residual: Tensor,
    drop: Drop | None,
    gain: Tensor | None,
    bias: Tensor | None,
    epsilon: float,
    *,
    centered: bool,
) -> tuple[Tensor, Tensor]:
    """Return ``residual + drop(x)`` and its norm; ``x`` and ``residual`` are ``[..., D]``, others see ``norm_beside``.

    The gradient of ``x`` comes with its sums over the rows, for the bias of the layer that computed ``x``.
    """
    added, normed = _AddNorm.apply(x, residual, drop, gain, bias, epsilon, centered)  # type: ignore[no-untyped-call]
    return added, normed


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        drop: Drop | None,
        gain: Tensor | None,
        bias: Tensor | None,
        epsilon: float,
        centered: bool,
    ) -> tuple[Tensor, Tensor]:
        keys, *numbers = drop or (None, 0, 0.0)
        added, normed, *statistics = triton_add_norm(x, residual, gain, bias, epsilon, centered, keys, *numbers)
        ctx.save_for_backward(added, gain, *statistics, keys)
        ctx.settings, ctx.affine_dtypes = (centered, numbers), [None if of is None else of.dtype for of in (gain, bias)]
        ctx.set_materialize_grads(False)
        return added, normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        added, gain, *statistics, keys = ctx.saved_tensors
        beside, gradient = gradients
        if gradient is None:
            gradient = torch.zeros_like(added)
        centered, numbers = ctx.settings
        given = (gradient, beside, added, gain, *statistics, centered, keys, *numbers)
        of_residual, of_x, *of_affine, sums = triton_add_norm_gradients(*given)
        of_x = note_sums(of_residual if keys is None else of_x, sums)
        pairs = zip(of_affine, ctx.affine_dtypes, strict=True)
        return of_x, of_residual, None, *(None if dtype is None else of.to(dtype) for of, dtype in pairs), None, None
