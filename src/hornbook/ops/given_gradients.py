"""A backward pass from given gradients, without importing SymPy.

scalar_with_gradient(y, gradient).backward()     y.backward(gradient), which imports SymPy for a check: 0.3 s
"""

from typing import Any

import torch
from torch import Tensor


class _Given(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return y.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient, None


def scalar_with_gradient(y: Tensor, gradient: Tensor) -> Tensor:
    """Return a zero whose gradient with respect to ``y`` is ``gradient``, of the same shape and dtype."""
    zero: Tensor = _Given.apply(y, gradient)  # type: ignore[no-untyped-call]
    return zero
