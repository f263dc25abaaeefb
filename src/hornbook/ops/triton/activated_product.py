"""Products of a feed-forward that apply the activation, or its derivative, to a tile before they store it.

::

    forward     u = x W₁ᵀ + b,  h = f(u)                       x [M, D], W₁ [F, D]
    backward    du = (g W₂) · f'(u),  db = Σ du over rows      g [M, D], W₂ [D, F]

A program computes a tile of ``[M, F]``; programs that run at a time share rows, so that weights and activations stay in
the second-level cache. Compared with a product and a kernel for the activation, forward saves reading u, backward
storing and reading the gradient of h; in return, Triton's products are not as fast as cuBLAS's. Sums over the rows of a
tile are stored, and added in a fixed order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hornbook.ops.triton.programs import PRODUCT, is_interpreted
from hornbook.ops.triton.summed_gradients import _normal, _slope

_ROWS_AT_A_TIME: tl.constexpr = tl.constexpr(16)
"""Tiles of rows whose programs start one after the other for the same columns."""


@triton.jit  # type: ignore[untyped-decorator]
def _activated(u: tl.tensor, activation: tl.constexpr) -> tl.tensor:
    """Return an activation of `hornbook.ops.layers.ACTIVATIONS`."""
    if activation == "gelu_tanh":
        h = u * tl.sigmoid(1.5957691216057308 * (u + 0.044715 * u * u * u))
    elif activation == "gelu":
        share, _ = _normal(u)
        h = u * share
    elif activation == "silu":
        h = u * tl.sigmoid(u)
    elif activation == "relu":
        h = tl.maximum(u, 0.0)
    else:
        tl.static_assert(activation == "relu_squared")
        h = tl.maximum(u, 0.0) * tl.maximum(u, 0.0)
    return h


@triton.jit  # type: ignore[untyped-decorator]
def _place(num_rows: tl.tensor, num_columns: tl.constexpr, height: tl.constexpr, width: tl.constexpr) -> tl.tensor:
    """Return the numbers of the program's tile, of rows and of columns."""
    per_group = _ROWS_AT_A_TIME * (num_columns // width)
    first = tl.program_id(0) // per_group * _ROWS_AT_A_TIME
    size = tl.minimum(tl.cdiv(num_rows, height) - first, _ROWS_AT_A_TIME)
    inside = tl.program_id(0) % per_group
    return first + inside % size, inside // size


@triton.jit  # type: ignore[untyped-decorator]
def _product(
    a: tl.tensor, b: tl.tensor, exists: tl.tensor, num_columns: tl.constexpr, depth: tl.constexpr,
    is_turned: tl.constexpr, height: tl.constexpr, width: tl.constexpr, step: tl.constexpr, widens: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return a tile of ``a b``, or ``a bᵀ`` if ``is_turned``, in fp32, given where its rows and columns begin."""
    total = tl.zeros((height, width), tl.float32)
    inner, columns = tl.arange(0, step), tl.arange(0, width)
    of_a = a + tl.arange(0, height)[:, None] * depth + inner[None, :]
    if is_turned:
        of_b = b + columns[:, None] * depth + inner[None, :]
    else:
        of_b = b + inner[:, None] * num_columns + columns[None, :]
    for _ in range(0, depth, step):
        left, right = tl.load(of_a, mask=exists, other=0.0), tl.load(of_b)
        if is_turned:
            right = tl.trans(right)
        if widens:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total, input_precision="ieee")
        of_a += step
        of_b += step if is_turned else step * num_columns
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _activated_linear(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, before: tl.tensor, result: tl.tensor, num_rows: tl.tensor,
    num_columns: tl.constexpr, depth: tl.constexpr, has_bias: tl.constexpr, activation: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, step: tl.constexpr, widens: tl.constexpr,
) -> None:  # fmt: skip
    row_tile, column_tile = _place(num_rows, num_columns, height, width)
    start, first = row_tile.to(tl.int64) * height, column_tile * width
    exists = (start + tl.arange(0, height) < num_rows)[:, None]
    u = _product(
        x + start * depth, weight + first * depth, exists, num_columns, depth, True, height, width, step, widens
    )
    columns = tl.arange(0, width)
    if has_bias:
        u += tl.load(bias + first + columns)[None, :]
    u = u.to(before.dtype.element_ty)
    places = tl.arange(0, height)[:, None] * num_columns + columns[None, :]
    tl.store(before + start * num_columns + first + places, u, mask=exists)
    h = _activated(u.to(tl.float32), activation).to(result.dtype.element_ty)
    tl.store(result + start * num_columns + first + places, h, mask=exists)


@triton.jit  # type: ignore[untyped-decorator]
def _activated_gradient(
    gradient: tl.tensor, weight: tl.tensor, before: tl.tensor, result: tl.tensor, sums: tl.tensor,
    num_rows: tl.tensor, num_columns: tl.constexpr, depth: tl.constexpr, activation: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, step: tl.constexpr, widens: tl.constexpr,
) -> None:  # fmt: skip
    row_tile, column_tile = _place(num_rows, num_columns, height, width)
    start, first = row_tile.to(tl.int64) * height, column_tile * width
    exists = (start + tl.arange(0, height) < num_rows)[:, None]
    of_h = _product(
        gradient + start * depth, weight + first, exists, num_columns, depth, False, height, width, step, widens
    )
    columns = tl.arange(0, width)
    places = tl.arange(0, height)[:, None] * num_columns + columns[None, :]
    u = tl.load(before + start * num_columns + first + places, mask=exists, other=0.0).to(tl.float32)
    of_u = of_h * _slope(u, activation)
    tl.store(result + start * num_columns + first + places, of_u.to(result.dtype.element_ty), mask=exists)
    tl.store(sums + row_tile * num_columns + first + columns, tl.sum(of_u, 0))


def tile(architecture: int, *, is_gradient: bool) -> dict[str, int]:
    """Return the tile of a program, and the options of its compilation; 80 is an A100, 90 an H100."""
    if architecture >= 90:  # with 8 warps, the gradient, which reads u at its end, would spill registers
        return {**PRODUCT, "num_warps": 16 if is_gradient else 8, "num_stages": 4}
    return {"height": 128, "width": 128, "step": 32, "num_warps": 8, "num_stages": 3}


def activated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    """Return u and f(u); see `hornbook.ops.triton.linear_operators.triton_activated_linear`."""
    x, weight, num_rows = x.contiguous(), weight.contiguous(), x.shape[:-1].numel()
    before, result = (x.new_empty(*x.shape[:-1], len(weight)) for _ in range(2))
    if num_rows:
        fixed = _constants(x, *weight.shape, is_gradient=False)
        programs = triton.cdiv(num_rows, fixed["height"]) * (len(weight) // fixed["width"])
        given = (x, weight, x if bias is None else bias, before, result, num_rows)
        _activated_linear[(programs,)](*given, has_bias=bias is not None, activation=activation, **fixed)
    return before, result


def activated_gradient(gradient: Tensor, weight: Tensor, before: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the gradient of u and its sums; see `hornbook.ops.triton.linear_operators.triton_activated_gradient`."""
    gradient, weight, before = gradient.contiguous(), weight.contiguous(), before.contiguous()
    num_rows, (depth, num_columns), result = before.shape[:-1].numel(), weight.shape, torch.empty_like(before)
    fixed = _constants(gradient, num_columns, depth, is_gradient=True)
    num_tiles = triton.cdiv(num_rows, fixed["height"])
    sums = torch.empty(num_tiles, num_columns, dtype=torch.float32, device=before.device)
    if num_rows:
        programs = num_tiles * (num_columns // fixed["width"])
        given = (gradient, weight, before, result, sums, num_rows)
        _activated_gradient[(programs,)](*given, activation=activation, **fixed)
    return result, sums.sum(0)


def _constants(x: Tensor, num_columns: int, depth: int, *, is_gradient: bool) -> dict[str, int]:
    """Return the constants and options of a kernel for activations like ``x``."""
    major, minor = torch.cuda.get_device_capability(x.device) if x.is_cuda else (9, 0)
    fixed = {"num_columns": num_columns, "depth": depth, "widens": is_interpreted() and x.dtype == torch.bfloat16}
    return {**fixed, **tile(10 * major + minor, is_gradient=is_gradient)}
