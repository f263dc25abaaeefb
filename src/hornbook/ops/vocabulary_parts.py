"""Losses and gradients of a chunk of tokens, one part of the columns of the output projection after the other."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hornbook.parallel.ranks import Cut
from hornbook.samples.windows import NOT_SCORED

_BLOCK = 64  # divides the rows of a table, padded as it is


class Columns(NamedTuple):
    """The columns of the output projection that a rank computes."""

    weight: Tensor
    """``[columns, D]``."""
    bias: Tensor | None
    """``[num_real]``."""
    num_real: int
    """Number of columns without padding."""
    first: int = 0
    """The token id of the first column."""
    cut: Cut | None = None
    cap: float | None = None
    """Soft limit of the logits, ``cap · tanh(logit / cap)`` (Gemma 2, 2024, section 2)."""
    table: Tensor | None = None
    """The whole table, or the split one of which ``weight`` is this rank's part; None for parts of the columns."""

    def parts(self, chunks: int) -> "list[Columns]":
        """Return the columns in at most ``chunks`` parts, whose sizes are multiples of 64 except for the last."""
        size = -(-len(self.weight) // (chunks * _BLOCK)) * _BLOCK
        found = []
        for start in range(0, len(self.weight), size):
            weight = self.weight[start : start + size]
            bias = None if self.bias is None else self.bias[start : start + size]
            num_real = min(max(self.num_real - start, 0), len(weight))
            found.append(Columns(weight, bias, num_real, self.first + start, self.cut, self.cap))
        return found


def first_of_ranks(tokens: Tensor, is_best: Tensor, cut: Cut) -> Tensor:
    """Return the smallest of the ranks' tokens for which ``is_best``, found by a maximum over the ranks."""
    return -cut.largest((-tokens).masked_fill(~is_best, -(1 << 62)))


def first_largest(x_CV: Tensor) -> Tensor:
    """Return ``x.argmax(1)``, four times as fast on a CPU: find the block of columns first, then the column in it.

    On a CPU, ``amax`` is vectorized and ``argmax`` is not.
    """
    size = math.gcd(_BLOCK, x_CV.shape[1])
    blocks = x_CV.view(len(x_CV), -1, size)
    best = blocks.amax(2).argmax(1, keepdim=True)
    inside = blocks.take_along_dim(best.unsqueeze(2), 1).squeeze(1).argmax(1)
    return best.squeeze(1) * size + inside


def own_columns(scores: Tensor, targets: Tensor, head: Columns) -> tuple[Tensor, Tensor]:
    """Return each target's column in ``head``, arbitrary if it has none, and whether it has one."""
    columns = targets - head.first
    is_own = (columns >= 0) & (columns < scores.shape[1])
    return columns.masked_fill(~is_own, 0), is_own


def add_by_parts(
    x: Tensor,
    targets: Tensor,
    parts: "list[Columns]",
    x_gradient: Tensor,
    weight_gradient: Tensor,
    bias_gradient: Tensor | None,
    weights: Tensor | None,
    z_weight: float,
    *,
    with_count: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Write or add the gradients of a chunk's losses, one part of the columns after the other.

    Returns:
        The log-probability of each target and the number of correct predictions, see ``summary_of``, and the squares.
    """
    normalizer, picked, num_correct = summary_of(x, targets, parts, with_count=with_count)
    of_x = torch.zeros_like(x, dtype=torch.float32)
    for part in parts:
        compute_weight, first = part.weight.to(x.dtype), part.first - parts[0].first
        logits, slope = complete(x @ compute_weight.t(), part)
        exact = logits.float().sub_(normalizer).exp_()
        if z_weight:
            exact *= 1.0 + 2.0 * z_weight * normalizer
        columns, is_own = own_columns(exact, targets, part)
        exact.scatter_add_(1, columns.unsqueeze(1), -is_own.to(exact.dtype).unsqueeze(1))
        exact[targets == NOT_SCORED] = 0.0
        if slope is not None:
            exact *= slope
        if weights is not None:
            exact *= weights.unsqueeze(1)
        gradient = exact.to(x.dtype)
        of_x += gradient @ compute_weight
        weight_gradient[first : first + len(compute_weight)] += gradient.t() @ x
        if bias_gradient is not None:
            bias_gradient[first : first + part.num_real] += exact[:, : part.num_real].sum(0)
    x_gradient.copy_(of_x)
    return picked, num_correct, squares_of(normalizer, targets)


def summary_of(
    x: Tensor, targets: Tensor, parts: "list[Columns]", *, with_count: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Reduce the logits of a chunk of tokens, one part of the columns after the other.

    Returns:
        The logarithm of the sum of all exponentials, fp32 ``[C, 1]``; the log-probability of each target, fp32 ``[C]``,
        0 if it is not scored; the number of correct predictions.
    """
    cut = parts[0].cut
    largest = x.new_full((len(x), 1), torch.finfo(torch.float32).min, dtype=torch.float32)
    total, picked = torch.zeros_like(largest), torch.zeros_like(largest).squeeze(1)
    predicted = torch.zeros_like(targets)
    for part in parts:
        logits = complete(x @ part.weight.to(x.dtype).t(), part)[0].float()
        best = logits.amax(1, keepdim=True)
        if with_count:
            predicted = torch.where(best > largest, first_largest(logits)[:, None] + part.first, predicted[:, None])
            predicted = predicted.squeeze(1)
        columns, is_own = own_columns(logits, targets, part)
        picked += logits.gather(1, columns.unsqueeze(1)).squeeze(1).masked_fill(~is_own, 0.0)
        higher = torch.maximum(largest, best)
        total = total * (largest - higher).exp_() + (logits - higher).exp_().sum(1, keepdim=True)
        largest = higher
    top = largest if cut is None else cut.largest(largest.clone())
    if cut is not None:
        total, picked = cut.sum(total * (largest - top).exp_()), cut.sum(picked)
    normalizer = total.log_() + top
    picked -= normalizer.squeeze(1).masked_fill(targets == NOT_SCORED, 0.0)
    if not with_count:
        return normalizer, picked, picked.new_zeros(())
    if cut is not None:
        predicted = first_of_ranks(predicted, (largest == top).squeeze(1), cut)
    return normalizer, picked, (predicted == targets).sum()


def squares_of(normalizer: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the scored tokens' squares of ``log Σ exp``."""
    return normalizer.squeeze(1).masked_fill(targets == NOT_SCORED, 0.0).square().sum()


def complete(logits: Tensor, head: Columns) -> tuple[Tensor, Tensor | None]:
    """Add the bias to logits, cap them, and set those of padding to minus infinity, in place unless capped.

    Returns:
        The logits, in fp32 if capped, and the derivative of the cap, fp32, if there is one.
    """
    if head.bias is not None:
        logits[:, : head.num_real] += head.bias.to(logits.dtype)
    slope = None
    if head.cap is not None:
        shares = torch.tanh(logits.float() / head.cap)
        slope, logits = 1.0 - shares.square(), shares * head.cap
    logits[:, head.num_real :] = -torch.inf
    return logits, slope
