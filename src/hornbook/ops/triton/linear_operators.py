"""The operators of linear layers next to activations, for PyTorch's dispatcher; `hornbook.ops.mixed_linear` calls them.

Products that apply an activation, or its derivative, to their results save a pass over the widest tensors of a model.
"""

import torch
from torch import Tensor

from hornbook.ops.operators import operator, shapes_of
from hornbook.ops.triton.programs import PRODUCT


def can_activate(num_out: int, num_in: int) -> bool:
    """Return whether the products below take a layer that maps ``num_in`` to ``num_out`` columns, or back."""
    return num_out % PRODUCT["width"] == 0 and num_in % PRODUCT["step"] == 0


@operator(device="any")
def triton_activated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    """Return ``u = x Wᵀ + b`` and ``f(u)``, both ``[..., C]`` in the dtype of ``x``.

    Args:
        x: ``[..., D]``, bf16 or fp16; see ``can_activate`` for C and D.
        weight: ``[C, D]`` in the dtype of ``x``.
        bias: ``[C]`` fp32, or None.
        activation: the name of f in `hornbook.ops.layers.ACTIVATIONS`.
    """
    from hornbook.ops.triton.activated_product import activated_linear

    return activated_linear(x, weight, bias, activation)


@shapes_of("triton_activated_linear")
def _(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    u, h = (x.new_empty(*x.shape[:-1], len(weight)) for _ in range(2))
    return u, h


@operator(device="any")
def triton_activated_gradient(
    gradient: Tensor, weight: Tensor, before: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    """Return the gradient of ``u``, given that of ``f(u) Wᵀ``, and its sums over the rows.

    Args:
        gradient: ``[..., D]``, bf16 or fp16.
        weight: ``[D, C]`` in the same dtype; see ``can_activate`` for C and D.
        before: ``u``, ``[..., C]``.
        activation: the name of f.

    Returns:
        ``(g W) · f'(u)`` ``[..., C]`` in the dtype of ``u``; its sums before rounding, fp32 ``[C]``.
    """
    from hornbook.ops.triton.activated_product import activated_gradient

    return activated_gradient(gradient, weight, before, activation)


@shapes_of("triton_activated_gradient")
def _(gradient: Tensor, weight: Tensor, before: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    return before.new_empty(before.shape), before.new_empty(before.shape[-1], dtype=torch.float32)


@operator(device="any")
def triton_activation_gradient(gradient: Tensor, before: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the gradient of ``u``, given that of ``f(u)``, and its sums over the rows.

    Args:
        gradient: of ``f(u)``, ``[..., C]``.
        before: ``u``, of the same shape and dtype.
        activation: the name of f in `hornbook.ops.layers.ACTIVATIONS`.

    Returns:
        The gradient in the dtype of ``u``; its sums before rounding, fp32 ``[C]``.
    """
    from hornbook.ops.triton.summed_gradients import activation_gradient

    return activation_gradient(gradient, before, activation)


@shapes_of("triton_activation_gradient")
def _(gradient: Tensor, before: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    return before.new_empty(before.shape), before.new_empty(before.shape[-1], dtype=torch.float32)
