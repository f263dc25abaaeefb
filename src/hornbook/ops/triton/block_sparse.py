"""Triton kernels for the products of block-sparse matrices, for blocks of 16 and more.

::

    y tile [T, b] of row r   = Σ over the blocks i of r   x tile [T, b] of column columns[i] · values[i]ᵀ
    dvalues[i] [b, b]        = Σ over tiles of tokens     dy tile [T, b] of row rows[i], transposed · x tile [T, b]

A program computes a tile of tokens of a block row, or a block of the gradient; accumulation is in fp32. The input
gradient is the same product with the transposed blocks. Large fp32 blocks are multiplied in parts, so that the shared
memory of every GPU since Ampere suffices.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hornbook.ops.triton.programs import is_interpreted


@triton.jit  # type: ignore[untyped-decorator]
def _product(
    x: tl.tensor,
    values: tl.tensor,
    starts: tl.tensor,
    columns: tl.tensor,
    y: tl.tensor,
    num_tokens: tl.tensor,
    x_width: tl.tensor,
    y_width: tl.tensor,
    size: tl.constexpr,
    tile: tl.constexpr,
    depth: tl.constexpr,
    widens: tl.constexpr,
) -> None:
    row = tl.program_id(1)
    tokens = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    outputs = tl.arange(0, size)
    exists = tokens[:, None] < num_tokens
    total = tl.zeros((tile, size), dtype=tl.float32)
    for block in range(tl.load(starts + row), tl.load(starts + row + 1)):
        first = tl.load(columns + block) * size
        for part in tl.static_range(0, size, depth):
            inside = part + tl.arange(0, depth)
            inputs = tl.load(x + (tokens[:, None] * x_width + first + inside[None, :]), mask=exists, other=0.0)
            turned = tl.load(values + (block * size * size + outputs[None, :] * size + inside[:, None]))
            if widens:
                inputs, turned = inputs.to(tl.float32), turned.to(tl.float32)
            total += tl.dot(inputs, turned, input_precision="ieee")
    places = y + (tokens[:, None] * y_width + row * size + outputs[None, :])
    tl.store(places, total.to(y.dtype.element_ty), mask=exists)


@triton.jit  # type: ignore[untyped-decorator]
def _weight_gradient(
    gradient: tl.tensor,
    x: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    of_values: tl.tensor,
    num_tokens: tl.tensor,
    y_width: tl.tensor,
    x_width: tl.tensor,
    size: tl.constexpr,
    tile: tl.constexpr,
    widens: tl.constexpr,
) -> None:
    block = tl.program_id(0)
    inside = tl.arange(0, size)
    first_out, first_in = tl.load(rows + block) * size, tl.load(columns + block) * size
    total = tl.zeros((size, size), dtype=tl.float32)
    for start in range(0, num_tokens, tile):
        tokens = start + tl.arange(0, tile).to(tl.int64)
        turned = tl.load(
            gradient + (tokens[None, :] * y_width + first_out + inside[:, None]),
            mask=tokens[None, :] < num_tokens,
            other=0.0,
        )
        inputs = tl.load(
            x + (tokens[:, None] * x_width + first_in + inside[None, :]), mask=tokens[:, None] < num_tokens, other=0.0
        )
        if widens:
            inputs, turned = inputs.to(tl.float32), turned.to(tl.float32)
        total += tl.dot(turned, inputs, input_precision="ieee")
    places = of_values + (block.to(tl.int64) * size * size + inside[:, None] * size + inside[None, :])
    tl.store(places, total.to(of_values.dtype.element_ty))


def constants(x_NC: Tensor, size: int, *, with_depth: bool) -> dict[str, int | bool]:
    """Return the constants of a kernel for blocks ``[size, size]``, and the options of its compilation.

    Args:
        x_NC: whose dtype counts; bf16 is widened for Triton's interpreter, which cannot multiply it.
        size: b.
        with_depth: whether the kernel is the product, which divides blocks, rather than their gradient.
    """
    is_large = size * x_NC.element_size() >= 256
    is_cut = is_large and x_NC.element_size() == 4
    fixed = {"size": size, "tile": 32 if is_cut else 64, "widens": is_interpreted() and x_NC.dtype == torch.bfloat16}
    parts = {"depth": 32 if is_cut else size} if with_depth else {}
    return {**fixed, **parts, "num_stages": 2 if is_large else 3, "num_warps": 8 if is_large else 4}


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
        fixed = constants(x_NC, size, with_depth=True)
        grid = (triton.cdiv(len(x_NC), fixed["tile"]), num_rows)
        _product[grid](x_NC, values, starts, columns, y_NC, len(x_NC), x_NC.shape[1], y_NC.shape[1], **fixed)
    return y_NC


def weight_gradient(gradient_NC: Tensor, x_NC: Tensor, rows: Tensor, columns: Tensor, size: int) -> Tensor:
    """Return the blocks ``[n, b, b]`` of ``dyᵀ x``, of the dtype of ``x``, at ``rows`` and ``columns``, int64."""
    gradient_NC, x_NC = gradient_NC.contiguous(), x_NC.contiguous()
    of_values = torch.empty(len(rows), size, size, dtype=x_NC.dtype, device=x_NC.device)
    if len(rows):
        widths = (gradient_NC.shape[1], x_NC.shape[1])
        args = (gradient_NC, x_NC, rows, columns, of_values, len(x_NC), *widths)
        _weight_gradient[(len(rows),)](*args, **constants(x_NC, size, with_depth=False))
    return of_values
