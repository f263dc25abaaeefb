"""The gradient of an activation and its sums over the rows, in one pass over both: the bias's gradient.

::

    du = dh · f'(u)          dbias = Σ du, over the rows in fp32: some per program, then over programs
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 264
"""Two for each multiprocessor of an H100."""
_TILE = {"height": 8, "width": 512}
"""Rows and columns of a step of a program."""


@triton.jit  # type: ignore[untyped-decorator]
def _slope(u: tl.tensor, activation: tl.constexpr) -> tl.tensor:
    """Return the derivative of an activation of `hornbook.ops.layers.ACTIVATIONS`."""
    if activation == "gelu_tanh":
        inner = 0.7978845608028654 * (u + 0.044715 * u * u * u)
        share = tl.sigmoid(2.0 * inner)  # (1 + tanh) / 2
        slope = share + u * 2.0 * share * (1.0 - share) * 0.7978845608028654 * (1.0 + 0.134145 * u * u)
    elif activation == "gelu":
        slope = 0.5 * (1.0 + tl.erf(u * 0.7071067811865476)) + u * 0.3989422804014327 * tl.exp(-0.5 * u * u)
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
def _activation_gradient(
    gradient: tl.tensor,
    before: tl.tensor,
    result: tl.tensor,
    sums: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    activation: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
) -> None:
    first = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * width + tl.arange(0, width)
    total = tl.zeros((height, width), tl.float32)
    for start in range(first * height, num_rows, tl.num_programs(0) * height):
        rows = start + tl.arange(0, height)
        exists = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
        places = rows[:, None] * num_columns + columns[None, :]
        of_h = tl.load(gradient + places, mask=exists, other=0.0).to(tl.float32)
        of_u = of_h * _slope(tl.load(before + places, mask=exists, other=0.0).to(tl.float32), activation)
        tl.store(result + places, of_u.to(result.dtype.element_ty), mask=exists)
        total += of_u
    tl.store(sums + first * num_columns + columns, tl.sum(total, 0), mask=columns < num_columns)


def activation_gradient(gradient: Tensor, before: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the gradient of u and its sums; see `hornbook.ops.triton.operators.triton_activation_gradient`."""
    gradient, before, num_columns = gradient.contiguous(), before.contiguous(), before.shape[-1]
    result, num_rows = torch.empty_like(before), before.shape[:-1].numel()
    blocks = triton.cdiv(num_columns, _TILE["width"])
    programs = max(1, min(triton.cdiv(num_rows, _TILE["height"]), triton.cdiv(_PROGRAMS, blocks)))
    sums = torch.empty(programs, num_columns, dtype=torch.float32, device=before.device)
    if not before.numel():
        return result, sums.new_zeros(num_columns)
    numbers = (result, sums, num_rows, num_columns)
    _activation_gradient[(programs, blocks)](gradient, before, *numbers, activation=activation, **_TILE)
    return result, sums.sum(0)
