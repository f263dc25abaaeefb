"""Linear layers of 16-bit activations and fp32 weights on a GPU, with activations between them.

::

    C = W in 16 bits                      once a step, whatever the number of micro-batches
    u = x Cᵀ + b,   h = f(u)              one kernel of Triton, if sizes fit
    du, db = (g C₂) · f'(u), Σ du         one kernel of Triton: the gradient of h is not stored
    dx = du C
    dW += duᵀ x                           the product writes the fp32 gradient, or adds to it

With PyTorch's operators alone, a layer casts its weights in every micro-batch, and rounds each micro-batch's gradient
to 16 bits before it is cast and added. Of split weights, all of this is the rank's part, and ranks sum y or dx where it
is (`hornbook.ops.tensor_parallel.Exchange`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.ops.native import kernels
from hornbook.ops.native.kernels import rows
from hornbook.ops.native.linear import has_plain_gradient
from hornbook.ops.tensor_parallel import exchange_of
from hornbook.ops.triton.linear_operators import (
    can_activate,
    triton_activated_gradient,
    triton_activated_linear,
    triton_activation_gradient,
)
from hornbook.ops.triton.operators import chosen
from hornbook.parallel.ranks import like, local, own_part

Activation = tuple[str, Callable[[Tensor], Tensor]]
"""Name and function."""
Parameters = tuple[Tensor, Tensor | None]
"""Weight and bias."""


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


def mixed_stack(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    """Return ``x Wᵀ + b`` for each of a stack of weights, whose gradients need not be stacked.

    Args:
        x: ``[..., num_in]``, bf16 or fp16.
        weight: ``[P, num_out, num_in]`` fp32.
        bias: ``[P, num_out]`` fp32, or None.

    Returns:
        P tensors ``[..., num_out]``, parts of one. The gradient of ``x`` is rounded after each of its P summands.
    """
    parts: tuple[Tensor, ...] = _MixedLinear.apply(x, weight, bias, None, len(weight))  # type: ignore[no-untyped-call]
    return parts


def mixed_feed_forward(x: Tensor, up: Parameters, down: Parameters, activation: Activation) -> Tensor:
    """Return ``f(x W₁ᵀ + b₁) W₂ᵀ + b₂``, with f and its derivative inside of products if the sizes fit.

    Args:
        x: bf16 or fp16.
        up: ``W₁`` and ``b₁``, fp32.
        down: ``W₂`` and ``b₂``, fp32.
        activation: f.
    """
    name, (sizes, back) = activation[0], (local(weight.detach()).shape for weight in (up[0], down[0]))
    if not (can_activate(*sizes) and back == sizes[::-1]):
        return mixed_linear(mixed_linear(x, *up, activation), *down)
    h, u = _MixedUp.apply(x, *up, name)  # type: ignore[no-untyped-call]
    y: Tensor = _MixedLinear.apply(h, *down, None, 1, u, name)  # type: ignore[no-untyped-call]
    return y


def narrowed(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the copy of ``weight`` in 16 bits, of which the gradient is added to that of ``weight``.

    For compiled code, which would cast it, and its gradient back, in every micro-batch.
    """
    copy: Tensor = _Narrowed.apply(weight, dtype)  # type: ignore[no-untyped-call]
    return copy


def write_product(total: Tensor, a: Tensor, b: Tensor, *, adds: bool) -> None:
    """Write ``a b`` of 16-bit matrices to an fp32 one, or add it, without rounding to 16 bits in between."""
    if not a.is_cuda:  # PyTorch has such products on GPUs only
        torch.addmm(total, a.float(), b.float(), beta=adds, out=total)
    elif adds:  # of an fp32 total since PyTorch 2.10, pull request 167931
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        torch.mm(a, b, out_dtype=torch.float32, out=total)


def _keep(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Keep the copy of the weight as an attribute: recomputation and offloading replace saved tensors."""
    ctx.copy = rows(kernels.copy_of(weight, x.dtype))
    ctx.weight, ctx.bias, ctx.exchange = weight, bias, exchange_of(weight)
    ctx.adds = kernels.unchanged.adds_gradients


def _of_bias(ctx: Any, gradients: tuple[Tensor, ...]) -> Tensor | None:
    """Return the gradient of the bias, given those of the layer's results: it is added behind a sum over ranks."""
    if ctx.bias is None:
        return None
    sums = [kernels.sums_of(gradient) for gradient in gradients]
    return like(ctx.bias, (sums[0] if len(sums) == 1 else torch.cat(sums)).view(own_part(ctx.bias).shape))


def _of_weight(ctx: Any, gradients: tuple[Tensor, ...], x: Tensor) -> Tensor | None:
    """Return the gradient of the weight, or add it and return None; ``x`` and ``gradients`` are of the product."""
    if not ctx.needs_input_grad[1]:
        return None
    is_first = not (ctx.adds and has_plain_gradient(ctx.weight))
    total: Tensor = torch.empty_like(ctx.weight) if is_first else ctx.weight.grad
    for part, gradient in zip(local(total).view(ctx.copy.shape).chunk(len(gradients)), gradients, strict=True):
        write_product(part, rows(gradient).t(), rows(x), adds=not is_first)
    return total if is_first else None


class _Narrowed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.weight, ctx.adds = weight, kernels.unchanged.adds_gradients
        return like(weight, kernels.copy_of(weight, dtype).detach())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
        if not (ctx.adds and has_plain_gradient(ctx.weight)):
            return gradient.to(ctx.weight.dtype), None
        local(ctx.weight.grad).add_(local(gradient))
        return None, None


class _MixedLinear(torch.autograd.Function):
    """One layer: with an activation behind it, in parts, or before it, whose derivative is in its backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        activation: Activation | None,
        num_parts: int = 1,
        before: Tensor | None = None,
        name: str = "",
    ) -> Tensor | tuple[Tensor, ...]:
        _keep(ctx, x, weight, bias)
        ctx.activation, ctx.name = activation, name
        offset = None if bias is None else kernels.copy_of(bias, x.dtype).flatten()
        is_first, given = ctx.exchange.is_first, ctx.exchange.given(x)
        u: Tensor = ctx.exchange.summed(functional.linear(given, ctx.copy, offset if is_first else None))
        if offset is not None and not is_first:
            u += offset
        ctx.save_for_backward(x, *(each for each in (before, None if activation is None else u) if each is not None))
        if activation is not None:
            return activation[1](u)
        return u if num_parts == 1 else u.chunk(num_parts, -1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *before = ctx.saved_tensors
        of_x: Tensor | None = None
        of_before: Tensor | None = None
        if ctx.activation is not None:
            gradients = (kernels.note_sums(*triton_activation_gradient(*gradients, *before, ctx.activation[0])),)
        of_bias = _of_bias(ctx, gradients)
        gradients = tuple(map(ctx.exchange.given_gradient, gradients))
        of_weight = _of_weight(ctx, gradients, ctx.exchange.given(x))
        if ctx.name:
            of_before = kernels.note_sums(*triton_activated_gradient(*gradients, ctx.copy, *before, ctx.name))
        elif ctx.needs_input_grad[0]:
            first, *others = zip(map(rows, gradients), ctx.copy.chunk(len(gradients)), strict=True)
            of_rows = first[0] @ first[1]
            for gradient, copy in others:
                of_rows.addmm_(gradient, copy)
            of_x = ctx.exchange.summed_gradient(of_rows.view(*gradients[0].shape[:-1], of_rows.shape[1]))
        return of_x, of_weight, of_bias, None, None, of_before, None


class _MixedUp(torch.autograd.Function):
    """The layer before an activation; the layer behind it computes the gradient before the activation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, name: str) -> tuple[Tensor, Tensor]:
        _keep(ctx, x, weight, bias)
        ctx.save_for_backward(x)
        offset = None if bias is None else own_part(bias).flatten()
        u, h = triton_activated_linear(ctx.exchange.given(x), ctx.copy, offset, name)
        ctx.mark_non_differentiable(h)
        ctx.set_materialize_grads(False)
        return h, u

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, _: None, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        of_bias, of_weight = _of_bias(ctx, (gradient,)), _of_weight(ctx, (gradient,), ctx.exchange.given(x))
        of_x: Tensor | None = None
        if ctx.needs_input_grad[0]:
            of_rows = rows(gradient) @ ctx.copy
            of_x = ctx.exchange.summed_gradient(of_rows.view(*gradient.shape[:-1], of_rows.shape[1]))
        return of_x, of_weight, of_bias, None
