"""The gradients of dropout and of activations, and their sums over the rows, in one pass: a bias's gradient.

::

    dx = dy · keep / (1 − p),   du = dh · f'(u)       Σ over the rows in fp32: some per program, then over programs
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hornbook.ops.triton.dropout import _keeps, dropout_numbers, tile
from hornbook.ops.triton.programs import Drop

_PROGRAMS = 528
"""Four for each multiprocessor of an H100."""


@triton.jit  # type: ignore[untyped-decorator]
def _normal(u: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return the normal distribution Φ(u), with an error of 3e-7, and exp(−u²/2).

    Formula 7.1.26 of Abramowitz and Stegun (1964) needs fewer registers than `tl.erf`, so that products have them all.
    """
    t, bell = 1.0 / (1.0 + 0.2316419 * tl.abs(u)), tl.exp(-0.5 * u * u)
    terms = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    tail = 0.5 * bell * t * terms
    return tl.where(u < 0.0, tail, 1.0 - tail), bell


@triton.jit  # type: ignore[untyped-decorator]
def _slope(u: tl.tensor, activation: tl.constexpr) -> tl.tensor:
    """Return the derivative of an activation of `hornbook.ops.layers.ACTIVATIONS`."""
    if activation == "gelu_tanh":
        inner = 0.7978845608028654 * (u + 0.044715 * u * u * u)
        share = tl.sigmoid(2.0 * inner)  # (1 + tanh) / 2
        slope = share + u * 2.0 * share * (1.0 - share) * 0.7978845608028654 * (1.0 + 0.134145 * u * u)
    elif activation == "gelu":
        share, bell = _normal(u)
        slope = share + u * 0.3989422804014327 * bell
    elif activation == "silu":
        share = tl.sigmoid(u)
        slope = share * (1.0 + u * (1.0 - share))
    elif activation == "relu":
        slope = tl.where(u > 0.0, 1.0, 0.0)
    else:
        tl.static_assert(activation == "relu_squared")
        slope = 2.0 * tl.maximum(u, 0.0)
    return slope


@triton.jit  # type: ignore[untyped-decorator]
def _summed_gradient(
    gradient: tl.tensor, beside: tl.tensor, result: tl.tensor, sums: tl.tensor, num_rows: tl.tensor,
    num_columns: tl.tensor, site: tl.tensor, threshold: tl.tensor, factor: tl.tensor, activation: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    """``beside`` has what was activated, or the keys of a dropout if ``activation`` is None."""
    first = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * width + tl.arange(0, width)
    total = tl.zeros((height, width), tl.float32)
    for start in range(first * height, num_rows, tl.num_programs(0) * height):
        rows = start + tl.arange(0, height)
        exists = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
        places = rows[:, None] * num_columns + columns[None, :]
        values = tl.load(gradient + places, mask=exists, other=0.0).to(tl.float32)
        if activation is None:
            keys = tl.load(beside + rows, mask=rows < num_rows, other=0)[:, None]
            values = tl.where(_keeps(keys, columns[None, :], site, threshold), values * factor, 0.0)
        else:
            values *= _slope(tl.load(beside + places, mask=exists, other=0.0).to(tl.float32), activation)
        tl.store(result + places, values.to(result.dtype.element_ty), mask=exists)
        total += values
    tl.store(sums + first * num_columns + columns, tl.sum(total, 0), mask=columns < num_columns)


def dropout_gradient(gradient: Tensor, keys: Tensor, site: int, probability: float) -> tuple[Tensor, Tensor]:
    """Return the gradient and its sums; see `hornbook.ops.triton.operators.triton_dropout_gradient`."""
    return _summed(gradient, keys, Drop(keys, site, probability), None)


def activation_gradient(gradient: Tensor, before: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the gradient of u and its sums; see `hornbook.ops.triton.linear_operators.triton_activation_gradient`."""
    return _summed(gradient, before, None, activation)


def _summed(gradient: Tensor, beside: Tensor, drop: Drop | None, activation: str | None) -> tuple[Tensor, Tensor]:
    gradient, num_columns, num_rows = gradient.contiguous(), gradient.shape[-1], gradient.shape[:-1].numel()
    result, fixed = torch.empty_like(gradient), tile(num_columns)
    blocks = triton.cdiv(num_columns, fixed["width"])
    programs = min(triton.cdiv(num_rows, fixed["height"]), triton.cdiv(_PROGRAMS, blocks))
    sums = torch.empty(programs, num_columns, dtype=torch.float32, device=gradient.device)
    if gradient.numel():
        numbers = (result, sums, num_rows, num_columns, *dropout_numbers(drop))
        _summed_gradient[(programs, blocks)](gradient, beside.contiguous(), *numbers, activation=activation, **fixed)
    return result, sums.sum(0)
