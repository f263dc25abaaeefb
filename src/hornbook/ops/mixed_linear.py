"""Linear layers of 16-bit activations and fp32 weights on a GPU, with an activation behind them.

::

    C = W in 16 bits                      once a step, whatever the number of micro-batches
    u = x Cᵀ + b,   h = f(u)
    du, db = dh · f'(u), Σ du             one kernel of Triton
    dx = du C
    dW += duᵀ x                           the product writes the fp32 gradient, or adds to it

With PyTorch's operators alone, a layer casts its weights in every micro-batch, and rounds each micro-batch's gradient
to 16 bits before it is cast and added.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.ops.native import kernels
from hornbook.ops.native.library import rows
from hornbook.ops.native.linear import has_plain_gradient
from hornbook.ops.triton.operators import chosen, triton_activation_gradient

Activation = tuple[str, Callable[[Tensor], Tensor]]
"""Name and function."""


def is_mixed(x: Tensor, *weights: Tensor) -> bool:
    """Return whether ``mixed_linear`` computes for activations like ``x``; compilers fuse casts themselves."""
    narrow = x.dtype != torch.float32 and all(weight.dtype == torch.float32 for weight in weights)
    return narrow and chosen("triton_linear", x) and not torch.compiler.is_compiling()


def mixed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None = None) -> Tensor:
    """Return ``f(x Wᵀ + b)`` ``[..., num_out]`` in the dtype of ``x`` ``[..., num_in]``.

    Args:
        x: bf16 or fp16.
        weight: ``[num_out, num_in]`` fp32, or a stack whose leading dimensions count as ``num_out``.
        bias: ``num_out`` values in fp32, of any shape, or None.
        activation: f; None for none.
    """
    y: Tensor = _MixedLinear.apply(x, weight, bias, activation)  # type: ignore[no-untyped-call]
    return y


def write_product(total: Tensor, a: Tensor, b: Tensor, *, adds: bool) -> None:
    """Write ``a b`` of 16-bit matrices to an fp32 one, or add it, without rounding to 16 bits in between."""
    if not a.is_cuda:  # PyTorch has such products on GPUs only
        torch.addmm(total, a.float(), b.float(), beta=adds, out=total)
    elif adds:  # of an fp32 total since PyTorch 2.10, pull request 167931
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        torch.mm(a, b, out_dtype=torch.float32, out=total)


class _MixedLinear(torch.autograd.Function):
    """Keeps the copy of the weight as an attribute: recomputation and offloading replace saved tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None) -> Tensor:
        ctx.copy = rows(kernels.copy_of(weight, x.dtype))
        ctx.bias_shape = None if bias is None else bias.shape
        ctx.weight, ctx.activation, ctx.adds = weight, activation, kernels.unchanged.adds_gradients
        u = functional.linear(x, ctx.copy, None if bias is None else kernels.copy_of(bias, x.dtype).flatten())
        if activation is None:
            ctx.save_for_backward(x)
            return u
        ctx.save_for_backward(x, u)
        return activation[1](u)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *before = ctx.saved_tensors
        of_x: Tensor | None = None
        of_weight: Tensor | None = None
        of_bias: Tensor | None = None
        if before:
            gradient, of_bias = triton_activation_gradient(gradient, *before, ctx.activation[0])
        elif ctx.bias_shape is not None:
            of_bias = gradient.flatten(0, -2).sum(0, dtype=torch.float32)
        of_u = rows(gradient)
        if ctx.needs_input_grad[0]:
            of_x = (of_u @ ctx.copy).view(x.shape)
        if ctx.needs_input_grad[1]:
            is_first = not (ctx.adds and has_plain_gradient(ctx.weight))
            total = torch.empty_like(ctx.weight) if is_first else ctx.weight.grad
            write_product(total.view(ctx.copy.shape), of_u.t(), rows(x), adds=not is_first)
            of_weight = total if is_first else None
        if of_bias is not None:
            of_bias = None if ctx.bias_shape is None else of_bias.view(ctx.bias_shape)
        return of_x, of_weight, of_bias, None
