"""Layer norm and RMS norm of rows, and their gradients, with statistics and sums in fp32.

::

    x̂ = (x − mean) · rate,   y = x̂ · gain + bias               RMS norm: mean = 0
    h = dy · gain,           dx = rate · (h − Σ h / D − x̂ · Σ h x̂ / D) + beside        RMS norm: without Σ h / D
    dgain = Σ dy · x̂,        dbias = Σ dy                       over the rows: some per program, then over programs

In the same pass, x may be computed as ``residual + drop(branch)``, and the gradient of the branch with its sums.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hornbook.ops.triton.dropout import _keeps, dropout_numbers
from hornbook.ops.triton.programs import Drop

_PROGRAMS = 264
"""Of the gradients: two for each multiprocessor of an H100."""


@triton.jit  # type: ignore[untyped-decorator]
def _norm(
    x: tl.tensor, residual: tl.tensor, keys: tl.tensor, gain: tl.tensor, bias: tl.tensor, added: tl.tensor,
    result: tl.tensor, means: tl.tensor, rates: tl.tensor, num_columns: tl.tensor, epsilon: tl.tensor,
    site: tl.tensor, threshold: tl.tensor, factor: tl.tensor, centered: tl.constexpr, has_gain: tl.constexpr,
    has_bias: tl.constexpr, adds: tl.constexpr, drops: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, width)
    exists = columns < num_columns
    values = tl.load(x + row * num_columns + columns, mask=exists, other=0.0).to(tl.float32)
    if drops:
        values = tl.where(_keeps(tl.load(keys + row), columns, site, threshold), values * factor, 0.0)
    if adds:
        values += tl.load(residual + row * num_columns + columns, mask=exists, other=0.0).to(tl.float32)
        rounded = values.to(added.dtype.element_ty)
        tl.store(added + row * num_columns + columns, rounded, mask=exists)
        values = rounded.to(tl.float32)
    mean = 0.0
    if centered:
        mean = tl.sum(values, 0) / num_columns
        values = tl.where(exists, values - mean, 0.0)
    rate = 1.0 / tl.sqrt(tl.sum(values * values, 0) / num_columns + epsilon)
    tl.store(means + row, mean)
    tl.store(rates + row, rate)
    values *= rate
    if has_gain:
        values *= tl.load(gain + columns, mask=exists, other=0.0).to(tl.float32)
    if has_bias:
        values += tl.load(bias + columns, mask=exists, other=0.0).to(tl.float32)
    tl.store(result + row * num_columns + columns, values.to(result.dtype.element_ty), mask=exists)


@triton.jit  # type: ignore[untyped-decorator]
def _norm_gradients(
    gradient: tl.tensor, beside: tl.tensor, x: tl.tensor, keys: tl.tensor, gain: tl.tensor, means: tl.tensor,
    rates: tl.tensor, of_x: tl.tensor, of_dropped: tl.tensor, of_gain: tl.tensor, of_bias: tl.tensor,
    row_sums: tl.tensor, num_rows: tl.tensor, num_columns: tl.tensor, site: tl.tensor, threshold: tl.tensor,
    factor: tl.tensor, centered: tl.constexpr, has_gain: tl.constexpr, has_beside: tl.constexpr, drops: tl.constexpr,
    width: tl.constexpr,
) -> None:  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, width)
    exists = columns < num_columns
    gains = tl.full((width,), 1.0, tl.float32)
    if has_gain:
        gains = tl.load(gain + columns, mask=exists, other=0.0).to(tl.float32)
    gain_sums, bias_sums = tl.zeros((width,), tl.float32), tl.zeros((width,), tl.float32)
    sums = tl.zeros((width,), tl.float32)
    # constants of the columns, such as addresses, would take the registers of the sums
    for row in tl.range(program, num_rows, tl.num_programs(0), disable_licm=True):
        places = row * num_columns + columns
        of_y = tl.load(gradient + places, mask=exists, other=0.0).to(tl.float32)
        values = tl.load(x + places, mask=exists, other=0.0).to(tl.float32)
        rate = tl.load(rates + row)
        normed = tl.where(exists, (values - tl.load(means + row)) * rate, 0.0)
        gain_sums += of_y * normed
        bias_sums += of_y
        h = of_y * gains
        moved = h - normed * (tl.sum(h * normed, 0) / num_columns)
        if centered:
            moved -= tl.sum(h, 0) / num_columns
        moved *= rate
        if has_beside:
            moved += tl.load(beside + places, mask=exists, other=0.0).to(tl.float32)
        tl.store(of_x + places, moved.to(of_x.dtype.element_ty), mask=exists)
        if drops:
            moved = tl.where(_keeps(tl.load(keys + row), columns, site, threshold), moved * factor, 0.0)
            tl.store(of_dropped + places, moved.to(of_dropped.dtype.element_ty), mask=exists)
        sums += moved
    tl.store(of_gain + program * num_columns + columns, gain_sums, mask=exists)
    tl.store(of_bias + program * num_columns + columns, bias_sums, mask=exists)
    tl.store(row_sums + program * num_columns + columns, sums, mask=exists)


def size(num_columns: int) -> dict[str, int]:
    """Return the width and the warps of a program."""
    width = triton.next_power_of_2(num_columns)
    return {"width": width, "num_warps": 32 if width > 2048 else max(4, width // 256)}


def norm(
    x: Tensor,
    residual: Tensor | None,
    drop: Drop | None,
    gain: Tensor | None,
    bias: Tensor | None,
    epsilon: float,
    *,
    centered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return norm, means, rates and sum; see `hornbook.ops.triton.norm_operators.triton_norm`."""
    x, adds = x.contiguous(), residual is not None
    result, num_columns, added = torch.empty_like(x), x.shape[-1], x.new_empty(x.shape if adds else 0)
    means, rates = (torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device) for _ in range(2))
    if x.numel():
        given = (x, x if residual is None else residual.contiguous(), x if drop is None else drop.keys.contiguous())
        affine = (x if gain is None else gain, x if bias is None else bias)
        numbers = (num_columns, epsilon, *dropout_numbers(drop))
        has = {"has_gain": gain is not None, "has_bias": bias is not None, "adds": adds, "drops": drop is not None}
        fixed = {"centered": centered, **has, **size(num_columns)}
        _norm[(rates.numel(),)](*given, *affine, added, result, means, rates, *numbers, **fixed)
    return result, means, rates, added


def norm_gradients(
    gradient: Tensor,
    beside: Tensor | None,
    x: Tensor,
    gain: Tensor | None,
    means: Tensor,
    rates: Tensor,
    drop: Drop | None,
    *,
    centered: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x and of what was dropped before it, and three sums over the rows ``[3, D]``.

    See `hornbook.ops.triton.norm_operators.triton_norm_gradients`.
    """
    x, gradient, num_columns, num_rows = x.contiguous(), gradient.contiguous(), x.shape[-1], rates.numel()
    of_x, of_dropped = torch.empty_like(x), x.new_empty(0 if drop is None else x.shape)
    programs = min(num_rows, _PROGRAMS)
    sums = torch.empty(3, programs, num_columns, dtype=torch.float32, device=x.device)
    if x.numel():
        given = (gradient, x if beside is None else beside.contiguous(), x)
        others = (x if drop is None else drop.keys.contiguous(), x if gain is None else gain, means, rates)
        numbers = (num_rows, num_columns, *dropout_numbers(drop))
        has = {"has_gain": gain is not None, "has_beside": beside is not None, "drops": drop is not None}
        fixed = {"centered": centered, **has, **size(num_columns)}
        _norm_gradients[(programs,)](*given, *others, of_x, of_dropped, *sums, *numbers, **fixed)
    return of_x, of_dropped, sums.sum(1)
