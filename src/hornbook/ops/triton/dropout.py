"""Dropout and residual addition in one kernel, with the bits of `hornbook.ops.dropout.keep_mask`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hornbook.ops.triton.programs import Drop

_ELEMENTS = 4096
"""Of a program."""
_MOST_WIDTH = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _mix(x: tl.tensor) -> tl.tensor:
    """Scramble unsigned 32-bit words."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)


@triton.jit  # type: ignore[untyped-decorator]
def _keeps(keys: tl.tensor, columns: tl.tensor, site: tl.tensor, threshold: tl.tensor) -> tl.tensor:
    """Return which elements are kept, given their tokens' keys and their columns, broadcast to each other."""
    token = _mix(keys.to(tl.uint32) ^ _mix((tl.zeros_like(keys).to(tl.int32) + site + 1).to(tl.uint32)))
    hashed = _mix(token + columns.to(tl.uint32) * 0x9E3779B1) & 0x7FFFFFFF
    return hashed.to(tl.int32) >= threshold


@triton.jit  # type: ignore[untyped-decorator]
def _dropout(
    x: tl.tensor,
    residual: tl.tensor,
    keys: tl.tensor,
    result: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    site: tl.tensor,
    threshold: tl.tensor,
    factor: tl.tensor,
    adds: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
) -> None:
    rows = tl.program_id(0).to(tl.int64) * height + tl.arange(0, height)
    columns = tl.program_id(1) * width + tl.arange(0, width)
    exists = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
    keeps = _keeps(tl.load(keys + rows, mask=rows < num_rows, other=0)[:, None], columns[None, :], site, threshold)
    places = rows[:, None] * num_columns + columns[None, :]
    values = tl.where(keeps, tl.load(x + places, mask=exists, other=0.0).to(tl.float32) * factor, 0.0)
    if adds:
        values += tl.load(residual + places, mask=exists, other=0.0).to(tl.float32)
    tl.store(result + places, values.to(result.dtype.element_ty), mask=exists)


def tile(num_columns: int) -> dict[str, int]:
    """Return the rows and columns of a program."""
    width = min(_MOST_WIDTH, triton.next_power_of_2(num_columns))
    return {"height": _ELEMENTS // width if width < _ELEMENTS else 1, "width": width}


def dropout_numbers(drop: Drop | None) -> tuple[int, int, float]:
    """Return site, threshold and factor, as kernels take them."""
    if drop is None:
        return 0, 0, 1.0
    return drop.site, int(drop.probability * (1 << 31)), 1.0 / (1.0 - drop.probability)


def dropout(x: Tensor, residual: Tensor | None, keys: Tensor, site: int, probability: float) -> Tensor:
    """Return ``residual + drop(x)``; see `hornbook.ops.triton.operators.triton_dropout`."""
    x, keys = x.contiguous(), keys.contiguous()
    result = torch.empty_like(x)
    if x.numel():
        beside = x if residual is None else residual.contiguous()
        fixed = tile(x.shape[-1])
        grid = (triton.cdiv(keys.numel(), fixed["height"]), triton.cdiv(x.shape[-1], fixed["width"]))
        numbers = (keys.numel(), x.shape[-1], *dropout_numbers(Drop(keys, site, probability)))
        _dropout[grid](x, beside, keys, result, *numbers, adds=residual is not None, **fixed)
    return result
