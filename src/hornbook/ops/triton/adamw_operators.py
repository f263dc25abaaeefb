"""The operator of Triton's Adam and AdamW, for PyTorch's dispatcher."""

from typing import Any

import torch
from torch import Tensor

from hornbook.ops.operators import operator, shapes_of
from hornbook.ops.triton.operators import chosen


def can_update(tensors: list[Tensor]) -> bool:
    """Return whether ``triton_adamw`` takes a weight, its gradient and its moments."""
    fit = all(each.dtype == torch.float32 and each.is_contiguous() for each in tensors)
    is_aligned = all(each.storage_offset() % 4 == 0 and each.numel() % 4 == 0 for each in tensors)
    return fit and is_aligned and all(chosen("triton_adamw", each) for each in tensors)


@operator(changes=(0, 2, 3, 4), device="any")
def triton_adamw(
    weights: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    copies: list[Tensor],
    numbers: list[float],
    decoupled: bool,
) -> None:
    """Update fp32 weights and moments in place.

    Args:
        weights: contiguous, their memory, that of the others and their sizes multiples of 16 bytes.
        gradients: of the same sizes; unchanged.
        means: exponential averages of the gradients.
        squares: those of their squares.
        copies: in bf16 or fp16, written: of as many of the first weights.
        numbers: learning rate, decay, β₁, β₂, ε, t (infinite without bias correction) and the gradients' factor.
        decoupled: AdamW's decay rather than Adam's.
    """
    from hornbook.ops.triton.adamw import adamw

    adamw((weights, gradients, means, squares), copies, numbers, decoupled=decoupled)


@shapes_of("triton_adamw")
def _(*arguments: Any) -> None:
    return None
