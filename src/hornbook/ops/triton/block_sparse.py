"""Triton kernels for the products of block-sparse matrices, for blocks of 16 and more.

::

    y tile [T, b] of row r       = Σ over the blocks of r, joined along the depth   x [T, k·b] · [values …]ᵀ
    dvalues [k, b, b] of row r   = Σ over tiles of tokens                           dy [T, b]ᵀ · x [T, k·b]

A program of the product computes a tile of tokens of a block row, and joins blocks to parts of at least 64 columns (32
in fp32). A program of the gradient joins blocks of a row, and so reads the gradient of the row once for all of them.
The gradient of the input is the product with the transposed blocks, column by column. Neighboring programs compute the
rows of the same tokens, which therefore stay in the second-level cache.

Triton tunes the tiles when it first multiplies a pair of sizes. They do not change the order of sums, which blocks,
dtype and number of tokens determine. Accumulation is in fp32.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from hornbook.ops.triton.programs import is_interpreted

_BUSY: Final = 1024
"""If there are fewer blocks, their gradients are summed over several ranges of tokens at once,"""
RANGE: Final = 1024
"""of at least this many tokens."""
_PRODUCT_TILES: Final = tuple(
    triton.Config({"tile": tile}, num_warps=warps, num_stages=stages)
    for tile, warps, stages in ((128, 4, 3), (128, 8, 3), (256, 8, 2), (64, 4, 3), (32, 4, 2))
)
"""Tokens of a program."""
_GRADIENT_TILES: Final = tuple(
    triton.Config({"width": width}, num_warps=warps, num_stages=stages)
    for width, warps, stages in ((128, 4, 3), (128, 8, 2), (256, 8, 2), (32, 4, 2), (64, 4, 2))
)
"""Columns of the blocks that a program joins."""


def tiles_of(configs: Sequence[triton.Config], given: Mapping[str, Any], **constants: Any) -> list[triton.Config]:
    """Return the tiles for a dtype and a block size that need neither spilled registers nor too much shared memory.

    Args:
        configs: of one of the two kernels.
        given: its tensors by name; of ``x``, the dtype counts.
        constants: its constants; of these, ``size`` counts.
    """
    size, is_fp32 = constants["size"], given["x"].dtype == torch.float32

    def fits(warps: int, tile: int = 0, width: int = 0) -> bool:
        sums = max(tile, width) * size // (32 * warps)  # registers of each thread
        if is_fp32:
            return sums <= 64 and (width == max(32, size) if width else tile == (32 if size == 128 else 64))
        return max(tile, width) >= (64 if tile else 128) and sums <= 64 and (warps == 4 or sums >= 32)

    return [config for config in configs if fits(config.num_warps, **config.kwargs)]


def constants(x_NC: Tensor, size: int) -> dict[str, int | bool]:
    """Return the constants of both kernels for blocks ``[size, size]``.

    Args:
        x_NC: whose dtype counts; bf16 is widened for Triton's interpreter, which cannot multiply it.
        size: b.
    """
    depth = 32 if x_NC.dtype == torch.float32 else 64
    return {"size": size, "depth": depth, "widens": is_interpreted() and x_NC.dtype == torch.bfloat16}


def _tuned(configs: tuple[triton.Config, ...]) -> Any:
    return triton.autotune(
        [*configs], key=["size", "x_blocks", "y_blocks"], prune_configs_by={"early_config_prune": tiles_of}
    )


@_tuned(_PRODUCT_TILES)  # type: ignore[untyped-decorator]
@triton.jit  # type: ignore[untyped-decorator]
def _product(
    x: tl.tensor,
    values: tl.tensor,
    starts: tl.tensor,
    order: tl.tensor,
    sources: tl.tensor,
    y: tl.tensor,
    num_tokens: tl.tensor,
    x_blocks: tl.tensor,
    y_blocks: tl.tensor,
    is_turned: tl.constexpr,
    size: tl.constexpr,
    depth: tl.constexpr,
    widens: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    row, tokens = tl.program_id(0), tl.program_id(1).to(tl.int64) * tile + tl.arange(0, tile)
    outputs, parts = tl.arange(0, size), tl.arange(0, depth)
    exists = tokens[:, None] < num_tokens
    lines = tokens[:, None] * (x_blocks * size)
    first, total = tl.load(starts + row), tl.zeros((tile, size), dtype=tl.float32)
    length = (tl.load(starts + row + 1) - first).to(tl.int32) * size
    for at in range(0, length, depth):
        inside, is_inside = (at + parts) % size, at + parts < length
        block = first + (at + parts) // size
        if is_turned:
            block = tl.load(order + block, mask=is_inside, other=0)
        source = tl.load(sources + block, mask=is_inside, other=0) * size + inside
        source = tl.max_contiguous(tl.multiple_of(source, 16), 16)
        inputs = tl.load(x + (lines + source[None, :]), mask=exists & is_inside[None, :], other=0.0)
        if is_turned:
            turned = (block * size + inside)[:, None] * size + outputs[None, :]
        else:
            start = tl.max_contiguous(tl.multiple_of(block * (size * size) + inside, 16), 16)
            turned = start[:, None] + outputs[None, :] * size
        weights = tl.load(values + turned, mask=is_inside[:, None], other=0.0)
        if widens:
            inputs, weights = inputs.to(tl.float32), weights.to(tl.float32)
        total += tl.dot(inputs, weights, input_precision="ieee")
    places = y + (tokens[:, None] * (y_blocks * size) + row * size + outputs[None, :])
    tl.store(places, total.to(y.dtype.element_ty), mask=exists)


@_tuned(_GRADIENT_TILES)  # type: ignore[untyped-decorator]
@triton.jit  # type: ignore[untyped-decorator]
def _weight_gradient(
    gradient: tl.tensor,
    x: tl.tensor,
    starts: tl.tensor,
    columns: tl.tensor,
    of_values: tl.tensor,
    num_tokens: tl.tensor,
    range_tokens: tl.tensor,
    y_blocks: tl.tensor,
    x_blocks: tl.tensor,
    size: tl.constexpr,
    depth: tl.constexpr,
    widens: tl.constexpr,
    width: tl.constexpr,
) -> None:
    row, part = tl.program_id(0), tl.program_id(2).to(tl.int64)
    joined, outputs = tl.arange(0, width), tl.arange(0, size)
    first, end = tl.load(starts + row) + tl.program_id(1) * (width // size), tl.load(starts + row + 1)
    if first < end:
        block = first + joined // size
        source = tl.load(columns + block, mask=block < end, other=0) * size + joined % size
        source = tl.max_contiguous(tl.multiple_of(source, 16), 16)
        total = tl.zeros((width, size), dtype=tl.float32)
        last = tl.minimum((part + 1) * range_tokens, num_tokens)
        for start in range(part * range_tokens, last, depth):
            tokens = start + tl.arange(0, depth)
            exists = tl.arange(0, depth)[:, None] < (last - start).to(tl.int32)
            inputs = tl.load(
                x + (tokens[:, None] * (x_blocks * size) + source[None, :]),
                mask=exists & (block < end)[None, :],
                other=0.0,
            )
            outer = tl.load(
                gradient + (tokens[:, None] * (y_blocks * size) + row * size + outputs[None, :]), mask=exists, other=0.0
            )
            if widens:
                inputs, outer = inputs.to(tl.float32), outer.to(tl.float32)
            total += tl.dot(tl.trans(inputs), outer, input_precision="ieee")
        number = part * tl.load(starts + y_blocks) + block
        places = of_values + ((number * (size * size) + joined % size)[:, None] + outputs[None, :] * size)
        tl.store(places, total.to(of_values.dtype.element_ty), mask=(block < end)[:, None])


def _run(kernel: Any, grid: Any, given: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    if is_interpreted():  # its times mean nothing
        chosen = tiles_of(kernel.configs, given, **fixed)[0].kwargs
        kernel.fn[grid](**given, **fixed, **chosen)
    else:
        kernel[grid](**given, **fixed)


def product(x_NC: Tensor, values: Tensor, starts: Tensor, sources: Tensor, order: Tensor | None = None) -> Tensor:
    """Return ``x Wᵀ`` ``[N, R·b]``, or ``x W``, in the dtype of ``x``.

    Args:
        x_NC: ``[N, C·b]``, fp32, bf16 or fp16.
        values: blocks ``[n, b, b]`` of the same dtype, ordered by block rows.
        starts: int64 ``[R + 1]``, the index of each row's first block, and n.
        sources: int64 ``[n]``, the block of ``x`` that each block multiplies.
        order: for ``x W``: int64 ``[n]``, the indices of the blocks, ordered by columns, of which there are R.
    """
    x_NC, values, size, num_rows = x_NC.contiguous(), values.contiguous(), values.shape[-1], len(starts) - 1
    y_NC = x_NC.new_empty(len(x_NC), num_rows * size)
    if y_NC.numel():
        given = {"x": x_NC, "values": values, "starts": starts, "order": sources if order is None else order}
        given |= {"sources": sources, "y": y_NC}
        counts = {"num_tokens": len(x_NC), "x_blocks": x_NC.shape[1] // size, "y_blocks": num_rows}
        _run(
            _product,
            lambda chosen: (num_rows, triton.cdiv(len(x_NC), chosen["tile"])),
            {**given, **counts},
            {"is_turned": order is not None, **constants(x_NC, size)},
        )
    return y_NC


def weight_gradient(gradient_NC: Tensor, x_NC: Tensor, starts: Tensor, columns: Tensor, size: int) -> Tensor:
    """Return the blocks ``[n, b, b]`` of ``dyᵀ x``, of the dtype of ``x``.

    Args:
        gradient_NC: ``[N, R·b]``, of the dtype of ``x``.
        x_NC: ``[N, C·b]``, fp32, bf16 or fp16.
        starts: int64 ``[R + 1]``, the index of each row's first block, and n.
        columns: int64 ``[n]``, the block column of each block.
        size: b.
    """
    gradient_NC, x_NC, num_blocks, num_tokens = gradient_NC.contiguous(), x_NC.contiguous(), len(columns), len(x_NC)
    if not num_blocks:
        return x_NC.new_empty(0, size, size)
    num_ranges = max(1, min(_BUSY // num_blocks, num_tokens // RANGE))
    dtype = x_NC.dtype if num_ranges == 1 else torch.float32
    of_values = torch.empty(num_ranges, num_blocks, size, size, dtype=dtype, device=x_NC.device)
    y_blocks, x_blocks = gradient_NC.shape[1] // size, x_NC.shape[1] // size
    given = {"gradient": gradient_NC, "x": x_NC, "starts": starts, "columns": columns, "of_values": of_values}
    counts = {"num_tokens": num_tokens, "range_tokens": triton.cdiv(num_tokens, num_ranges)}
    counts |= {"y_blocks": y_blocks, "x_blocks": x_blocks}
    _run(
        _weight_gradient,
        lambda chosen: (y_blocks, triton.cdiv(x_blocks * size, chosen["width"]), num_ranges),
        {**given, **counts},
        constants(x_NC, size),
    )
    return of_values[0] if num_ranges == 1 else of_values.sum(0).to(x_NC.dtype)
