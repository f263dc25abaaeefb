"""The cross-entropy of rows of logits and its gradient, which replaces the logits, in two passes over them.

A program computes a row: first the largest logit and the sum of exponentials, each lane for its own columns, then
``softmax − onehot``. Sums are in fp32. Of a multiprocessor's registers, a program needs more than half, so that the
rows of all that run at a time, 13 MB on an H100 for GPT-2, are still in the second-level cache for the second pass.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

FIXED = {"width": 8192, "num_warps": 32}
"""Columns of a step, and the warps of a program."""
_LOWEST: tl.constexpr = tl.constexpr(-3.0e38)


@triton.jit  # type: ignore[untyped-decorator]
def _cross_entropy(
    logits: tl.tensor,
    targets: tl.tensor,
    bias: tl.tensor,
    losses: tl.tensor,
    predictions: tl.tensor,
    stride: tl.tensor,
    num_columns: tl.tensor,
    num_real: tl.tensor,
    has_bias: tl.constexpr,
    with_gradient: tl.constexpr,
    width: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, width)
    own = logits + row * stride
    target = tl.load(targets + row)
    is_scored = target >= 0
    at_target = tl.where(is_scored, target, 0)
    of_target = tl.load(own + at_target).to(tl.float32)
    if has_bias:
        of_target += tl.load(bias + at_target)
    largest = tl.full((width,), _LOWEST, tl.float32)
    total = tl.zeros((width,), tl.float32)
    best = tl.zeros((width,), tl.int32)
    for start in range(0, num_real, width):
        columns = start + lanes
        is_real = columns < num_real
        z = tl.load(own + columns, mask=is_real, other=float("-inf"), eviction_policy="evict_last").to(tl.float32)
        if has_bias:
            z += tl.load(bias + columns, mask=is_real, other=0.0)
        best = tl.where(z > largest, columns, best)
        higher = tl.maximum(largest, z)
        total = total * tl.exp(largest - higher) + tl.exp(z - higher)
        largest = higher
    top = tl.max(largest, 0)
    normalizer = tl.log(tl.sum(total * tl.exp(largest - top), 0)) + top
    tl.store(losses + row, tl.where(is_scored, normalizer - of_target, 0.0))
    tl.store(predictions + row, tl.min(tl.where(largest == top, best, 2147483647), 0).to(tl.int64))
    if with_gradient:
        for start in range(0, num_columns, width):
            columns = start + lanes
            is_real = columns < num_real
            z = tl.load(own + columns, mask=is_real, other=float("-inf"), eviction_policy="evict_first").to(tl.float32)
            if has_bias:
                z += tl.load(bias + columns, mask=is_real, other=0.0)
            gradient = tl.exp(z - normalizer) - tl.where(columns == target, 1.0, 0.0)
            gradient = tl.where(is_scored, gradient, 0.0)
            tl.store(own + columns, gradient.to(logits.dtype.element_ty), mask=columns < num_columns)


def cross_entropy_(
    logits: Tensor, targets: Tensor, bias: Tensor | None, num_real: int, *, with_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Return losses and predictions; see `hornbook.ops.triton.operators.triton_cross_entropy`."""
    num_rows, num_columns = logits.shape
    losses, predictions = torch.empty(num_rows, dtype=torch.float32, device=logits.device), torch.empty_like(targets)
    assert logits.stride(1) == 1, "rows of logits are contiguous"
    if num_rows:
        results = (losses, predictions, logits.stride(0), num_columns, num_real)
        has = {"has_bias": bias is not None, "with_gradient": with_gradient}
        _cross_entropy[(num_rows,)](logits, targets, losses if bias is None else bias, *results, **has, **FIXED)
    return losses, predictions
