"""Triton kernels for the products of block-sparse matrices, for blocks of 16 and more.

::

    y tile [T, b] of row r   = Σ over the blocks i of r   x tile [T, b] of column columns[i] · values[i]ᵀ
    dvalues[i] [b, b]        = Σ over tiles of tokens     dy tile [T, b] of row rows[i], transposed · x tile [T, b]

A program computes a tile of tokens of a block row, or a block of the gradient; accumulation is in fp32. The input
gradient is the same product with the transposed blocks. Tests run the kernels with Triton's interpreter on a CPU
(``TRITON_INTERPRET=1``, set before this module is imported); they have never run on a GPU.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

_TILE = 64


@triton.jit  # type: ignore[untyped-decorator]
def _product(
    x: Any,
    values: Any,
    starts: Any,
    columns: Any,
    y: Any,
    num_tokens: Any,
    x_width: Any,
    y_width: Any,
    size: tl.constexpr,
    tile: tl.constexpr,
    widens: tl.constexpr,
) -> None:
    row = tl.program_id(1)
    tokens = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = tl.arange(0, size)
    exists = tokens[:, None] < num_tokens
    total = tl.zeros((tile, size), dtype=tl.float32)
    for block in range(tl.load(starts + row), tl.load(starts + row + 1)):
        first = tl.load(columns + block) * size
        inputs = tl.load(x + tokens[:, None] * x_width + first + inside[None, :], mask=exists, other=0.0)
        turned = tl.load(values + block * size * size + inside[None, :] * size + inside[:, None])
        if widens:
            inputs, turned = inputs.to(tl.float32), turned.to(tl.float32)
        total += tl.dot(inputs, turned, input_precision="ieee")
    places = y + tokens[:, None] * y_width + row * size + inside[None, :]
    tl.store(places, total.to(y.dtype.element_ty), mask=exists)


@triton.jit  # type: ignore[untyped-decorator]
def _weight_gradient(
    gradient: Any,
    x: Any,
    rows: Any,
    columns: Any,
    of_values: Any,
    num_tokens: Any,
    y_width: Any,
    x_width: Any,
    size: tl.constexpr,
    tile: tl.constexpr,
    widens: tl.constexpr,
) -> None:
    block = tl.program_id(0)
    inside = tl.arange(0, size)
    first_out, first_in = tl.load(rows + block) * size, tl.load(columns + block) * size
    total = tl.zeros((size, size), dtype=tl.float32)
    for start in range(0, num_tokens, tile):
        tokens = start + tl.arange(0, tile)
        turned = tl.load(
            gradient + tokens[None, :] * y_width + first_out + inside[:, None],
            mask=tokens[None, :] < num_tokens,
            other=0.0,
        )
        inputs = tl.load(
            x + tokens[:, None] * x_width + first_in + inside[None, :], mask=tokens[:, None] < num_tokens, other=0.0
        )
        if widens:
            inputs, turned = inputs.to(tl.float32), turned.to(tl.float32)
        total += tl.dot(turned, inputs, input_precision="ieee")
    places = of_values + block * size * size + inside[:, None] * size + inside[None, :]
    tl.store(places, total.to(of_values.dtype.element_ty))


def why_not(device: torch.device) -> str | None:
    """Return why the kernels do not support a device; None if they do."""
    is_fit = device.type == ("cpu" if knobs.runtime.interpret else "cuda")
    return None if is_fit else "Triton is for CUDA devices, or for a CPU with TRITON_INTERPRET=1"


def _constants(x_NC: Tensor, size: int) -> dict[str, int | bool]:
    """Return the constants of both kernels; bf16 is widened for Triton's interpreter, which cannot multiply it."""
    widens = knobs.runtime.interpret and x_NC.dtype == torch.bfloat16
    return {"size": size, "tile": _TILE, "widens": widens}


def product(x_NC: Tensor, values: Tensor, starts: Tensor, columns: Tensor) -> Tensor:
    """Return ``x Wᵀ`` ``[N, R·b]`` in the dtype of ``x``.

    Args:
        x_NC: ``[N, C·b]``, fp32, bf16 or fp16.
        values: blocks ``[n, b, b]`` of the same dtype, ordered by block rows.
        starts: int64 ``[R + 1]``, the index of each row's first block, and n.
        columns: int64 ``[n]``.
    """
    x_NC, values, size, num_rows = x_NC.contiguous(), values.contiguous(), values.shape[-1], len(starts) - 1
    y_NC = x_NC.new_zeros(len(x_NC), num_rows * size)
    if y_NC.numel() and len(columns):
        grid = (triton.cdiv(len(x_NC), _TILE), num_rows)
        widths = (x_NC.shape[1], y_NC.shape[1])
        _product[grid](x_NC, values, starts, columns, y_NC, len(x_NC), *widths, **_constants(x_NC, size))
    return y_NC


def weight_gradient(gradient_NC: Tensor, x_NC: Tensor, rows: Tensor, columns: Tensor, size: int) -> Tensor:
    """Return the blocks ``[n, b, b]`` of ``dyᵀ x``, of the dtype of ``x``, at ``rows`` and ``columns``, int64."""
    gradient_NC, x_NC = gradient_NC.contiguous(), x_NC.contiguous()
    of_values = torch.empty(len(rows), size, size, dtype=x_NC.dtype, device=x_NC.device)
    if len(rows):
        widths = (gradient_NC.shape[1], x_NC.shape[1])
        args = (gradient_NC, x_NC, rows, columns, of_values, len(x_NC), *widths)
        _weight_gradient[(len(rows),)](*args, **_constants(x_NC, size))
    return of_values
