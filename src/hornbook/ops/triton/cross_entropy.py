"""The cross-entropy of rows of logits and its gradient, which replaces the logits, in two passes over them.

A program computes a row: first the largest logit and the sum of exponentials, each lane for its own columns, then
``softmax − onehot``. Sums are in fp32. Of a multiprocessor's registers, a program needs more than half, so that the
rows of all that run at a time, 13 MB on an H100 for GPT-2, are still in the second-level cache for the second pass.

If the columns are split over ranks, each pass is a launch. In between, a rank gathers four numbers per row from each
rank, `summarize`, from which all compute the same losses.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

FIXED = {"width": 8192, "num_warps": 32}
"""Columns of a step, and the warps of a program."""
_LOWEST: tl.constexpr = tl.constexpr(-3.0e38)


@triton.jit  # type: ignore[untyped-decorator]
def _logits(
    own: tl.tensor,
    bias: tl.tensor,
    columns: tl.tensor,
    mask: tl.tensor,
    cap: tl.tensor,
    has_bias: tl.constexpr,
    has_cap: tl.constexpr,
    eviction: tl.constexpr,
) -> tl.tensor:
    """Return columns of a row in fp32, with the bias and capped, minus infinity where masked."""
    z = tl.load(own + columns, mask=mask, other=float("-inf"), eviction_policy=eviction).to(tl.float32)
    if has_bias:
        z += tl.load(bias + columns, mask=mask, other=0.0)
    if has_cap:  # cap · tanh(z / cap)
        z = tl.where(mask, cap * (2.0 * tl.sigmoid(2.0 * z / cap) - 1.0), float("-inf"))
    return z


@triton.jit  # type: ignore[untyped-decorator]
def _summary(
    own: tl.tensor,
    column: tl.tensor,
    bias: tl.tensor,
    num_real: tl.tensor,
    cap: tl.tensor,
    has_bias: tl.constexpr,
    has_cap: tl.constexpr,
    width: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return a row's largest logit, its first column, the sum of exponentials over the largest's, the target's logit.

    The target's is 0 if its column is negative.
    """
    lanes = tl.arange(0, width)
    of_target = _logits(own, bias, column, column >= 0, cap, has_bias, has_cap, "")
    of_target = tl.where(column >= 0, of_target, 0.0)
    largest = tl.full((width,), _LOWEST, tl.float32)
    total = tl.zeros((width,), tl.float32)
    best = tl.zeros((width,), tl.int32)
    for start in range(0, num_real, width):
        columns = start + lanes
        z = _logits(own, bias, columns, columns < num_real, cap, has_bias, has_cap, "evict_last")
        best = tl.where(z > largest, columns, best)
        higher = tl.maximum(largest, z)
        total = total * tl.exp(largest - higher) + tl.exp(z - higher)
        largest = higher
    top = tl.max(largest, 0)
    total_over_top = tl.sum(total * tl.exp(largest - top), 0)
    return top, tl.min(tl.where(largest == top, best, 2147483647), 0), total_over_top, of_target


@triton.jit  # type: ignore[untyped-decorator]
def _column_of(target: tl.tensor, first: tl.tensor, num_real: tl.tensor) -> tl.tensor:
    """Return the column of a target, -1 if it is not scored or not among these."""
    column = target - first
    return tl.where((target >= 0) & (column >= 0) & (column < num_real), column, -1)


@triton.jit  # type: ignore[untyped-decorator]
def _summarize(
    logits: tl.tensor,
    targets: tl.tensor,
    bias: tl.tensor,
    summary: tl.tensor,
    stride: tl.tensor,
    num_rows: tl.tensor,
    num_real: tl.tensor,
    first: tl.tensor,
    cap: tl.tensor,
    has_bias: tl.constexpr,
    has_cap: tl.constexpr,
    width: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = _column_of(tl.load(targets + row), first, num_real)
    top, best, total, of_target = _summary(logits + row * stride, column, bias, num_real, cap, has_bias, has_cap, width)
    own = summary + row
    tl.store(own, top)
    tl.store(own + num_rows, (first + best).to(tl.float32, bitcast=True))
    tl.store(own + 2 * num_rows, total)
    tl.store(own + 3 * num_rows, of_target)


@triton.jit  # type: ignore[untyped-decorator]
def _cross_entropy(
    logits: tl.tensor,
    targets: tl.tensor,
    bias: tl.tensor,
    summaries: tl.tensor,
    losses: tl.tensor,
    predictions: tl.tensor,
    log_sums: tl.tensor,
    stride: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    num_real: tl.tensor,
    first: tl.tensor,
    num_parts: tl.tensor,
    cap: tl.tensor,
    z_weight: tl.tensor,
    has_bias: tl.constexpr,
    has_cap: tl.constexpr,
    is_split: tl.constexpr,
    with_gradient: tl.constexpr,
    width: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * stride
    target = tl.load(targets + row)
    column = _column_of(target, first, num_real)
    if is_split:
        top, best, total, of_target = tl.full((), _LOWEST, tl.float32), 0, 0.0, 0.0
        for part in range(num_parts):
            of_part = summaries + part * 4 * num_rows + row
            largest = tl.load(of_part)
            best = tl.where(largest > top, tl.load(of_part + num_rows).to(tl.int32, bitcast=True), best)
            higher = tl.maximum(top, largest)
            total = total * tl.exp(top - higher) + tl.load(of_part + 2 * num_rows) * tl.exp(largest - higher)
            of_target += tl.load(of_part + 3 * num_rows)
            top = higher
    else:
        top, best, total, of_target = _summary(own, column, bias, num_real, cap, has_bias, has_cap, width)
    normalizer = tl.log(total) + top
    tl.store(losses + row, tl.where(target >= 0, normalizer - of_target, 0.0))
    tl.store(log_sums + row, tl.where(target >= 0, normalizer, 0.0))
    tl.store(predictions + row, best)
    if with_gradient:
        for start in range(0, num_columns, width):
            columns = start + tl.arange(0, width)
            z = _logits(own, bias, columns, columns < num_real, cap, has_bias, has_cap, "evict_first")
            gradient = tl.exp(z - normalizer) * (1.0 + 2.0 * z_weight * normalizer)
            gradient -= tl.where(columns == column, 1.0, 0.0)
            if has_cap:
                gradient *= tl.where(columns < num_real, 1.0 - (z / cap) * (z / cap), 0.0)
            gradient = tl.where(target >= 0, gradient, 0.0)
            tl.store(own + columns, gradient.to(logits.dtype.element_ty), mask=columns < num_columns)


def summarize(
    logits: Tensor, targets: Tensor, bias: Tensor | None, num_real: int, cap: float | None, first: int
) -> Tensor:
    """Return the numbers that ranks gather; see `hornbook.ops.triton.operators.triton_summary`."""
    assert logits.stride(1) == 1, "rows of logits are contiguous"
    summary = torch.empty(4, len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        numbers = (logits.stride(0), len(logits), num_real, first, cap or 1.0)
        has = {"has_bias": bias is not None, "has_cap": cap is not None}
        _summarize[(len(logits),)](
            logits, targets, summary if bias is None else bias, summary, *numbers, **has, **FIXED
        )
    return summary


def cross_entropy_(
    logits: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    num_real: int,
    cap: float | None,
    z_weight: float,
    first: int,
    summaries: Tensor | None,
    *,
    with_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return losses, predictions and log-sums; see `hornbook.ops.triton.operators.triton_cross_entropy`."""
    num_rows, num_columns = logits.shape
    losses, log_sums = (torch.empty(num_rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    predictions = torch.empty_like(targets)
    assert logits.stride(1) == 1, "rows of logits are contiguous"
    if num_rows:
        given = (losses if each is None else each for each in (bias, summaries))
        sizes = (logits.stride(0), num_rows, num_columns, num_real, first, 0 if summaries is None else len(summaries))
        has = {"has_bias": bias is not None, "has_cap": cap is not None, "is_split": summaries is not None}
        _cross_entropy[(num_rows,)](
            logits, targets, *given, losses, predictions, log_sums, *sizes, cap or 1.0, z_weight,
            **has, with_gradient=with_gradient, **FIXED,
        )  # fmt: skip
    return losses, predictions, log_sums
