"""Linear layers with their gradients, and activations between them: products, and the operators that call them.

::

    weight fp32 --pack--> panels in the dtype of x, kept for all micro-batches of a step
    x, panels  ---------> y, or f(y) and y                    product
    g, panels of Wᵀ ----> gradient of x, or that times f'(x)  product
    g, x  --------------> dW, db in fp32, stored or added     linear_weight_gradient

    h, u = linear(x, W₁, b₁, f)                u = x W₁ᵀ + b₁, h = f(u), in one pass
    y, _ = linear(h, W₂, b₂, before=u, f)      h W₂ᵀ + b₂; its backward pass gives u the gradient (g W₂) f'(u)

Of a gated layer, u is twice as wide as h: gates, and what their activations multiply, h = f(gate) · up.
"""

from collections.abc import MutableMapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hornbook.ops.native import kernels
from hornbook.ops.native.kernels import SUFFIXES, Form, rows
from hornbook.ops.operators import operator, shapes_of
from hornbook.parallel.ranks import local

ACTIVATIONS: Final = ("none", "gelu", "gelu_tanh", "relu", "relu_squared", "silu")
"""In the order of ``Activation`` in csrc/activations.h."""
_Key = tuple[torch.dtype, bool, str, bool]
"""Dtype of the activations, whether panels are for the gradient, instruction set, whether they are of gates."""
_State = tuple[int | None, int]
"""The number of the block in which a weight does not change, and its address."""
_packed: MutableMapping[Tensor, dict[_Key, tuple[_State, Tensor]]] = WeakTensorKeyDictionary()


def panels_of(form: Form, weight: Tensor, dtype: torch.dtype, *, for_gradient: bool, is_gated: bool = False) -> Tensor:
    """Return a weight packed for activations of ``dtype``; that of a parameter is kept as long as it does not change.

    ``is_gated`` is for the product with a stack of gates and of what they multiply, see ``product``.
    """
    name, matrix, block = SUFFIXES[dtype], rows(weight.detach()), kernels.unchanged.block
    is_kept = block is not None and isinstance(weight, torch.nn.Parameter)
    kept: dict[_Key, tuple[_State, Tensor]] = _packed.setdefault(weight, {}) if is_kept else {}
    key, state = (dtype, for_gradient, form.isa, is_gated), (block, weight.data_ptr())
    known_state, panels = kept.get(key, (None, None))
    if panels is not None and known_state == state:
        return panels
    num_out, num_in = matrix.shape
    size = form(f"linear_packed_bytes_{name}", *((num_in, num_out) if for_gradient else (num_out, num_in)))
    if panels is None or panels.numel() != size:
        panels = torch.empty(size, dtype=torch.uint8)
    kind = (int(for_gradient), int(is_gated))
    form(f"linear_pack_{name}", matrix, matrix.stride(0), num_out, num_in, *kind, panels, torch.get_num_threads())
    kept[key] = (state, panels)
    return panels


def product(
    form: Form,
    x: Tensor,
    panels: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    *,
    for_gradient: bool = False,
    activation: str = "none",
    before: Tensor | None = None,
    derivative_at: Tensor | None = None,
    is_gated: bool = False,
) -> Tensor:
    """Return ``f(x Wᵀ + b)``, or ``x W`` for a gradient, ``[M, columns]``.

    With ``is_gated``, half of the columns of ``x Wᵀ + b`` are gates, and the result is ``f(gate) · up``
    ``[M, columns / 2]`` (Shazeer 2020). With ``derivative_at``, too, ``x W`` is the gradient of that, and the result
    those of gate and up, ``[M, 2 columns]``.

    Args:
        form: of the product.
        x: fp32 or bf16, ``[..., depth]``, M rows.
        panels: of the weight, packed for this product.
        weight: determines the number of columns.
        bias: fp32.
        out: contiguous; the result is written to it if it is given.
        for_gradient: whether the product is with ``W`` rather than ``Wᵀ``.
        activation: f, of ``ACTIVATIONS``.
        before: ``[M, columns]``, contiguous; ``x Wᵀ + b`` is written to it.
        derivative_at: ``before``; multiply the product by f' of these instead of applying f.
        is_gated: see above; panels are of gates, too, unless there is ``derivative_at``.
    """
    x_MK = rows(x)
    num_rows, depth = x_MK.shape
    columns = weight.shape[-1] if for_gradient else weight.shape[:-1].numel()
    gated = 0 if not is_gated else columns if derivative_at is not None else columns // 2
    width = columns if not is_gated else 2 * gated if derivative_at is not None else gated
    y_MN = x_MK.new_empty(num_rows, width) if out is None else out
    bias = None if bias is None else bias.detach().contiguous()
    at_stride = 0 if derivative_at is None else derivative_at.stride(0)
    form(
        f"linear_product_{SUFFIXES[x_MK.dtype]}", x_MK, x_MK.stride(0), panels, num_rows, columns, depth,
        ACTIVATIONS.index(activation), bias, before, derivative_at, at_stride, y_MN, width, gated,
        torch.get_num_threads(),
    )  # fmt: skip
    return y_MN


@operator(has_gradient=True)
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    isa: str,
    activation: str = "none",
    is_gated: bool = False,
    before: Tensor | None = None,
    activation_before: str = "none",
) -> tuple[Tensor, Tensor]:
    """Return ``f(u)`` and ``u = x Wᵀ + b`` ``[..., num_out]`` in the dtype of ``x`` ``[..., num_in]``.

    Both are differentiable; without an activation f, the second is empty.

    Args:
        x: fp32 or bf16.
        weight: ``[num_out, num_in]`` fp32, or a stack whose leading dimensions count as ``num_out``.
        bias: ``num_out`` values in fp32, of any shape, or None.
        isa: instruction set of the form for this operator and its gradients.
        activation: f, of ``ACTIVATIONS``.
        is_gated: whether the halves of ``u`` are gate and up, and the first result is ``f(gate) · up``.
        before: if given, ``x`` is ``activation_before`` of it, gated if it is twice as wide; it gets the gradient
            instead of ``x``.
        activation_before: of ``ACTIVATIONS``.
    """
    form, shape = Form(isa), x.shape[:-1]
    u_MN = x.new_empty(0 if activation == "none" else shape.numel(), weight.shape[:-1].numel())
    panels = panels_of(form, weight, x.dtype, for_gradient=False, is_gated=is_gated)
    at = u_MN if len(u_MN) else None
    y_MN = product(form, x, panels, weight, bias, activation=activation, before=at, is_gated=is_gated)
    return y_MN.view(*shape, y_MN.shape[1]), u_MN if at is None else u_MN.view(*shape, u_MN.shape[1])


@shapes_of("linear")
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, isa: str, activation: str = "none", is_gated: bool = False,
    *others: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    width = weight.shape[:-1].numel()
    u = x.new_empty(*([0] if activation == "none" else x.shape[:-1]), width)
    return x.new_empty(*x.shape[:-1], width // 2 if is_gated else width), u


@operator()
def linear_input_gradient(
    gradient: Tensor, weight: Tensor, isa: str, before: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """Return the gradient of ``x`` ``[..., num_in]``, or of ``before``, given that of ``u`` ``[..., num_out]``."""
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
    """Return ``gradient · f'(u)``, or the gradients of gate and up if ``u`` has both, ``[..., 2 F]``."""
    gradient, u, size = gradient.contiguous(), u.contiguous(), gradient.shape[-1]
    result = torch.empty_like(u)
    Form(isa)(
        f"activation_gradient_{SUFFIXES[u.dtype]}", gradient, u, gradient.shape[:-1].numel(), size,
        int(u.shape[-1] != size), ACTIVATIONS.index(activation), result, torch.get_num_threads(),
    )  # fmt: skip
    return result


@shapes_of("linear_activation_gradient")
def _(gradient: Tensor, u: Tensor, *others: Any) -> Tensor:
    return u.new_empty(u.shape)


@operator(changes=(2, 3))
def linear_weight_gradient(
    gradient: Tensor, x: Tensor, of_weight: Tensor, of_bias: Tensor | None, isa: str, adds: bool
) -> None:
    """Write or, with ``adds``, add the gradients of weight and bias to contiguous fp32 tensors of their shapes."""
    g_MN, x_MK = rows(gradient), rows(x)
    Form(isa)(
        f"linear_weight_gradient_{SUFFIXES[x.dtype]}", g_MN, g_MN.stride(0), x_MK, x_MK.stride(0), len(x_MK),
        g_MN.shape[1], x_MK.shape[1], of_weight, of_bias, int(adds), torch.get_num_threads(),
    )  # fmt: skip


@shapes_of("linear_weight_gradient")
def _(gradient: Tensor, x: Tensor, of_weight: Tensor, of_bias: Tensor | None, isa: str, adds: bool) -> None:
    return None


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    """Save tensors for the backward pass, but parameters as attributes, and whether it may add to their ``.grad``.

    Recomputation (`torch.utils.checkpoint`) replaces saved tensors by others, which have no packed form and no
    ``.grad``.
    """
    x, weight, bias, ctx.isa, ctx.activation, _, before, ctx.activation_before = inputs
    ctx.adds_gradients = kernels.unchanged.adds_gradients
    others = (weight, bias, before, None if ctx.activation == "none" else output[1])
    ctx.parameters = [other if isinstance(other, torch.nn.Parameter) else None for other in others]
    ctx.save_for_backward(x, *(None if isinstance(other, torch.nn.Parameter) else other for other in others))
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, of_y: Tensor | None, of_u: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients of the tensors; add those of weight and bias to ``.grad`` instead where it is allowed."""
    x, *others = ctx.saved_tensors
    pairs = zip(ctx.parameters, others, strict=True)
    weight, bias, before, u = (saved if kept is None else kept for kept, saved in pairs)
    if u is None:
        of_u = of_y
    elif of_y is not None:
        through = linear_activation_gradient(of_y, u, ctx.activation, ctx.isa)
        of_u = through if of_u is None else of_u + through
    if of_u is None:
        return (None,) * 8
    of_input = of_weight = of_bias = None
    if ctx.needs_input_grad[0 if before is None else 6]:
        of_input = linear_input_gradient(of_u, weight, ctx.isa, before, ctx.activation_before)
    if any(ctx.needs_input_grad[1:3]):
        adds = ctx.adds_gradients and has_plain_gradient(weight) and (bias is None or has_plain_gradient(bias))
        if adds:
            sums = weight.grad, None if bias is None else bias.grad
        else:
            of_weight = torch.empty(weight.shape, dtype=torch.float32)
            of_bias = None if bias is None else torch.empty(bias.shape, dtype=torch.float32)
            sums = of_weight, of_bias
        linear_weight_gradient(of_u, x, *sums, ctx.isa, adds)
    of_x, of_before = (of_input, None) if before is None else (None, of_input)
    return of_x, of_weight, of_bias, None, None, None, of_before, None


torch.library.register_autograd("hornbook::linear", _backward, setup_context=_setup_context)


PLAIN: tuple[type, ...] = (Tensor,)
"""Types of a rank's part of a gradient on one device; traces of a step without values have their own."""


def has_plain_gradient(parameter: Tensor) -> bool:
    """Return whether a gradient can be added to ``.grad``: from an executor's second pass on, and without hooks."""
    if not isinstance(parameter, torch.nn.Parameter) or not parameter.requires_grad:
        return False
    grad = None if parameter.grad is None else local(parameter.grad)
    is_plain = grad is not None and type(grad) in PLAIN and grad.is_contiguous() and grad.dtype == torch.float32
    return is_plain and not parameter._backward_hooks and not parameter._post_accumulate_grad_hooks
