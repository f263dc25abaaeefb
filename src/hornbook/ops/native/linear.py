"""Linear layers with their gradients, and activations between them; `hornbook.ops.native.products` computes.

::

    h, u = linear_activation(x, W₁, b₁, f)     u = x W₁ᵀ + b₁, h = f(u), in one pass
    y = linear(h, W₂, b₂, u, f)                h W₂ᵀ + b₂; its backward pass gives u the gradient (g W₂) f'(u)

Of a gated layer, u is twice as wide as h: gates, and what their activations multiply, h = f(gate) · up.

A layer that no activation follows is ``linear(x, W, b)``.
"""

from typing import Any

import torch
from torch import Tensor

from hornbook.ops.native import kernels
from hornbook.ops.native.library import Form, rows
from hornbook.ops.native.products import activation_gradient, add_weight_gradient, panels_of, product
from hornbook.ops.operators import operator, shapes_of


@operator(has_gradient=True)
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, isa: str, before: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """Return ``x Wᵀ + b`` ``[..., num_out]`` in the dtype of ``x`` ``[..., num_in]``.

    Args:
        x: fp32 or bf16.
        weight: ``[num_out, num_in]`` fp32, or a stack whose leading dimensions count as ``num_out``.
        bias: ``num_out`` values in fp32, of any shape, or None.
        isa: instruction set of the form for this operator and its gradients.
        before: if given, ``x`` is ``activation(before)``, gated if that is twice as wide; ``before`` gets the gradient
            instead of ``x``.
        activation: of ``products.ACTIVATIONS``.
    """
    form = Form(isa)
    y_MN = product(form, x, panels_of(form, weight, x.dtype, for_gradient=False), weight, bias)
    return y_MN.view(*x.shape[:-1], y_MN.shape[1])


@shapes_of("linear")
def _(x: Tensor, weight: Tensor, *others: Any) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[:-1].numel())


@operator(has_gradient=True)
def linear_activation(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, isa: str, is_gated: bool = False
) -> tuple[Tensor, Tensor]:
    """Return ``f(u)`` and ``u = x Wᵀ + b``, both differentiable; arguments as for ``linear``.

    With ``is_gated``, the halves of ``u`` are gate and up, and the first result is ``f(gate) · up``.
    """
    form = Form(isa)
    u_MN = x.new_empty(x.shape[:-1].numel(), weight.shape[:-1].numel())
    panels = panels_of(form, weight, x.dtype, for_gradient=False, is_gated=is_gated)
    h_MN = product(form, x, panels, weight, bias, activation=activation, before=u_MN, is_gated=is_gated)
    return h_MN.view(*x.shape[:-1], h_MN.shape[1]), u_MN.view(*x.shape[:-1], u_MN.shape[1])


@shapes_of("linear_activation")
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, isa: str, is_gated: bool = False
) -> tuple[Tensor, Tensor]:
    width = weight.shape[:-1].numel()
    return x.new_empty(*x.shape[:-1], width // 2 if is_gated else width), x.new_empty(*x.shape[:-1], width)


@operator()
def linear_input_gradient(
    gradient: Tensor, weight: Tensor, isa: str, before: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """Return the gradient of ``x`` ``[..., num_in]``, or of ``before``, given that of ``y`` ``[..., num_out]``."""
    form = Form(isa)
    panels = panels_of(form, weight, gradient.dtype, for_gradient=True)
    at = None if before is None else rows(before)
    of: dict[str, Any] = {"activation": activation, "derivative_at": at}
    is_gated = at is not None and at.shape[1] != weight.shape[-1]
    of_x_MN = product(form, gradient, panels, weight, for_gradient=True, is_gated=is_gated, **of)
    return of_x_MN.view(*gradient.shape[:-1], of_x_MN.shape[1])


@shapes_of("linear_input_gradient")
def _(gradient: Tensor, weight: Tensor, isa: str, before: Tensor | None = None, activation: str = "none") -> Tensor:
    return gradient.new_empty(*gradient.shape[:-1], (weight if before is None else before).shape[-1])


@operator()
def linear_activation_gradient(gradient: Tensor, u: Tensor, activation: str, isa: str) -> Tensor:
    """Return the gradient of ``u``, given that of ``f(u)``."""
    return activation_gradient(Form(isa), gradient, u, activation)


@shapes_of("linear_activation_gradient")
def _(gradient: Tensor, u: Tensor, *others: Any) -> Tensor:
    return u.new_empty(u.shape)


@operator()
def linear_weight_gradient(gradient: Tensor, x: Tensor, with_bias: bool, isa: str) -> tuple[Tensor, Tensor]:
    """Return the gradients ``[num_out, num_in]`` and ``[num_out]``, fp32, the latter empty without ``with_bias``."""
    of_weight = gradient.new_empty(gradient.shape[-1], x.shape[-1], dtype=torch.float32)
    of_bias = gradient.new_empty(gradient.shape[-1] if with_bias else 0, dtype=torch.float32)
    add_weight_gradient(Form(isa), gradient, x, of_weight, of_bias if with_bias else None, accumulate=False)
    return of_weight, of_bias


@shapes_of("linear_weight_gradient")
def _(gradient: Tensor, x: Tensor, with_bias: bool, isa: str) -> tuple[Tensor, Tensor]:
    of_weight = gradient.new_empty(gradient.shape[-1], x.shape[-1], dtype=torch.float32)
    return of_weight, gradient.new_empty(gradient.shape[-1] if with_bias else 0, dtype=torch.float32)


@operator(changes=(2, 3))
def linear_add_weight_gradient(
    gradient: Tensor, x: Tensor, of_weight: Tensor, of_bias: Tensor | None, isa: str
) -> None:
    """Add the gradients to contiguous fp32 tensors of the shapes of weight and bias."""
    add_weight_gradient(Form(isa), gradient, x, of_weight, of_bias, accumulate=True)


@shapes_of("linear_add_weight_gradient")
def _(gradient: Tensor, x: Tensor, of_weight: Tensor, of_bias: Tensor | None, isa: str) -> None:
    return None


def _save(ctx: Any, x: Tensor, *others: Tensor | None) -> None:
    """Save tensors for the backward pass, but parameters as attributes, and whether it may add to their ``.grad``.

    Recomputation (`torch.utils.checkpoint`) replaces saved tensors by others, which have no packed form and no
    ``.grad``.
    """
    ctx.adds_gradients = kernels.unchanged.adds_gradients
    ctx.parameters = [other if isinstance(other, torch.nn.Parameter) else None for other in others]
    ctx.save_for_backward(x, *(None if isinstance(other, torch.nn.Parameter) else other for other in others))


def _saved(ctx: Any) -> list[Any]:
    x, *others = ctx.saved_tensors
    return [x, *(saved if kept is None else kept for kept, saved in zip(ctx.parameters, others, strict=True))]


def _setup_linear(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, ctx.isa, before, ctx.activation = inputs
    _save(ctx, x, weight, bias, before)


def _of_linear(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, before = _saved(ctx)
    of_input = None
    if ctx.needs_input_grad[0 if before is None else 4]:
        of_input = linear_input_gradient(gradient, weight, ctx.isa, before, ctx.activation)
    of_x, of_before = (of_input, None) if before is None else (None, of_input)
    return of_x, *_of_parameters(ctx, gradient, x, weight, bias), None, of_before, None


torch.library.register_autograd("hornbook::linear", _of_linear, setup_context=_setup_linear)


def _setup_linear_activation(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, ctx.activation, ctx.isa, _ = inputs
    _save(ctx, x, weight, bias, output[1])
    ctx.set_materialize_grads(False)


def _of_linear_activation(ctx: Any, of_h: Tensor | None, of_u: Tensor | None) -> tuple[Tensor | None, ...]:
    x, weight, bias, u = _saved(ctx)
    if of_h is not None:
        through = linear_activation_gradient(of_h, u, ctx.activation, ctx.isa)
        of_u = through if of_u is None else of_u + through
    if of_u is None:
        return (None,) * 6
    of_x = linear_input_gradient(of_u, weight, ctx.isa) if ctx.needs_input_grad[0] else None
    return of_x, *_of_parameters(ctx, of_u, x, weight, bias), None, None, None


torch.library.register_autograd(
    "hornbook::linear_activation", _of_linear_activation, setup_context=_setup_linear_activation
)


def _of_parameters(
    ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of weight and bias, or add them to ``.grad`` and return None."""
    if not any(ctx.needs_input_grad[1:3]):
        return None, None
    if ctx.adds_gradients and has_plain_gradient(weight) and (bias is None or has_plain_gradient(bias)):
        linear_add_weight_gradient(gradient, x, weight.grad, None if bias is None else bias.grad, ctx.isa)
        return None, None
    of_weight, of_bias = linear_weight_gradient(gradient, x, bias is not None, ctx.isa)
    return of_weight.view(weight.shape), None if bias is None else of_bias.view(bias.shape)


PLAIN: tuple[type, ...] = (Tensor,)
"""Types of gradients that are whole and on one device; traces of a step without values have their own."""


def has_plain_gradient(parameter: Tensor) -> bool:
    """Return whether a gradient can be added to ``.grad``: from an executor's second pass on, and without hooks."""
    if not isinstance(parameter, torch.nn.Parameter) or not parameter.requires_grad:
        return False
    grad = parameter.grad
    is_plain = grad is not None and type(grad) in PLAIN and grad.is_contiguous() and grad.dtype == torch.float32
    return is_plain and not parameter._backward_hooks and not parameter._post_accumulate_grad_hooks
