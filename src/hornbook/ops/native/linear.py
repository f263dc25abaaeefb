"""The linear layer: ``x Wᵀ + b`` with both gradients, weights packed once for all products with them.

::

    weight fp32 --pack--> panels in the dtype of x, kept for all micro-batches of a step
    x, panels  ---------> y                      linear
    g, panels of Wᵀ ----> gradient of x          linear_input_gradient
    g, x  --------------> dW, db in fp32         linear_weight_gradient, or into ``.grad``
"""

import functools
from collections.abc import MutableMapping

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from hornbook.ops.native import kernels
from hornbook.ops.native.library import Form, Kernel
from hornbook.ops.native.operands import SUFFIXES, rows

_Key = tuple[torch.dtype, bool, str]
"""Dtype of the activations, whether for the gradient, instruction set."""
_State = tuple[int, int]
"""Of a weight: the period in which it does not change, and its address."""
_packed: MutableMapping[Tensor, dict[_Key, tuple[_State, Tensor]]] = WeakTensorKeyDictionary()


@torch.library.custom_op("hornbook::linear", mutates_args=(), device_types="cpu")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None, isa: str) -> Tensor:
    """Return ``x Wᵀ + b`` ``[..., num_out]`` in the dtype of ``x`` ``[..., num_in]``.

    Args:
        x: fp32 or bf16.
        weight: ``[num_out, num_in]`` fp32, or a stack whose leading dimensions count as ``num_out``.
        bias: ``num_out`` values in fp32, of any shape, or None.
        isa: instruction set of the form that computes it and its gradients.
    """
    form = Form(isa)
    y_MN = _product(form, rows(x), _panels(form, weight, x.dtype, for_gradient=False), weight, bias)
    return y_MN.view(*x.shape[:-1], y_MN.shape[1])


@linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, isa: str) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.numel() // weight.shape[-1])


@torch.library.custom_op("hornbook::linear_input_gradient", mutates_args=(), device_types="cpu")
def linear_input_gradient(gradient: Tensor, weight: Tensor, isa: str) -> Tensor:
    """Return the gradient of ``x`` ``[..., num_in]`` for that of ``y`` ``[..., num_out]``."""
    form = Form(isa)
    panels = _panels(form, weight, gradient.dtype, for_gradient=True)
    of_x_MN = _product(form, rows(gradient), panels, weight, None, for_gradient=True)
    return of_x_MN.view(*gradient.shape[:-1], weight.shape[-1])


@linear_input_gradient.register_fake
def _(gradient: Tensor, weight: Tensor, isa: str) -> Tensor:
    return gradient.new_empty(*gradient.shape[:-1], weight.shape[-1])


@torch.library.custom_op("hornbook::linear_weight_gradient", mutates_args=(), device_types="cpu")
def linear_weight_gradient(gradient: Tensor, x: Tensor, with_bias: bool, isa: str) -> tuple[Tensor, Tensor]:
    """Return the gradients ``[num_out, num_in]`` and ``[num_out]``, fp32, the latter empty if not asked for."""
    of_weight = gradient.new_empty(gradient.shape[-1], x.shape[-1], dtype=torch.float32)
    of_bias = gradient.new_empty(gradient.shape[-1] if with_bias else 0, dtype=torch.float32)
    _add_weight_gradient(Form(isa), gradient, x, of_weight, of_bias if with_bias else None, accumulate=False)
    return of_weight, of_bias


@linear_weight_gradient.register_fake
def _(gradient: Tensor, x: Tensor, with_bias: bool, isa: str) -> tuple[Tensor, Tensor]:
    of_weight = gradient.new_empty(gradient.shape[-1], x.shape[-1], dtype=torch.float32)
    return of_weight, gradient.new_empty(gradient.shape[-1] if with_bias else 0, dtype=torch.float32)


@torch.library.custom_op(
    "hornbook::linear_add_weight_gradient", mutates_args=("of_weight", "of_bias"), device_types="cpu"
)
def linear_add_weight_gradient(
    gradient: Tensor, x: Tensor, of_weight: Tensor, of_bias: Tensor | None, isa: str
) -> None:
    """Add the gradients to contiguous fp32 tensors of the shapes of weight and bias."""
    _add_weight_gradient(Form(isa), gradient, x, of_weight, of_bias, accumulate=True)


@linear_add_weight_gradient.register_fake
def _(gradient: Tensor, x: Tensor, of_weight: Tensor, of_bias: Tensor | None, isa: str) -> None:
    return None


def _setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, weight, bias, ctx.isa = inputs
    ctx.save_for_backward(x, weight, bias)


def _backward(ctx, gradient):  # type: ignore[no-untyped-def]
    x, weight, bias = ctx.saved_tensors
    of_x = linear_input_gradient(gradient, weight, ctx.isa) if ctx.needs_input_grad[0] else None
    if not any(ctx.needs_input_grad[1:]):
        return of_x, None, None, None
    if _adds_in_place(weight) and (bias is None or _adds_in_place(bias)):
        linear_add_weight_gradient(gradient, x, weight.grad, None if bias is None else bias.grad, ctx.isa)
        return of_x, None, None, None
    of_weight, of_bias = linear_weight_gradient(gradient, x, bias is not None, ctx.isa)
    return of_x, of_weight.view(weight.shape), None if bias is None else of_bias.view(bias.shape), None


def _adds_in_place(parameter: Tensor) -> bool:
    """Tell whether a gradient may be added to ``.grad`` here: within an executor's passes, from the second one on."""
    if kernels.period() is None or not isinstance(parameter, torch.nn.Parameter) or not parameter.requires_grad:
        return False
    grad = parameter.grad
    is_plain = type(grad) is Tensor and grad.is_contiguous() and grad.dtype == torch.float32
    return is_plain and not parameter._backward_hooks and not parameter._post_accumulate_grad_hooks


linear.register_autograd(_backward, setup_context=_setup_context)


class Products:
    """``x Wᵀ`` of one weight and its gradients outside autograd, as `hornbook.ops.cross_entropy` needs them.

    Args:
        form: computes them.
        weight: ``[num_out, num_in]`` fp32, packed at once.
        dtype: of the other operands.
    """

    def __init__(self, form: Form, weight: Tensor, dtype: torch.dtype) -> None:
        self._form, self._weight = form, weight
        self._panels = [_panels(form, weight, dtype, for_gradient=of_input) for of_input in (False, True)]

    def product(self, x_MK: Tensor) -> Tensor:
        """Return ``x Wᵀ`` ``[M, num_out]``."""
        return _product(self._form, rows(x_MK), self._panels[0], self._weight, None)

    def input_gradient(self, gradient_MN: Tensor, out_MK: Tensor) -> None:
        """Write ``g W`` into ``out`` ``[M, num_in]``, contiguous."""
        _product(self._form, rows(gradient_MN), self._panels[1], self._weight, None, out_MK, for_gradient=True)

    def add_weight_gradient(self, gradient_MN: Tensor, x_MK: Tensor, total_NK: Tensor) -> None:
        """Add ``gᵀ x`` to ``total``, contiguous fp32."""
        _add_weight_gradient(self._form, gradient_MN, x_MK, total_NK, None, accumulate=True)


def _panels(form: Form, weight: Tensor, dtype: torch.dtype, *, for_gradient: bool) -> Tensor:
    """Return the packed weight, that of an earlier call where nothing has changed since."""
    period = kernels.period()
    if period is None or not isinstance(weight, torch.nn.Parameter):
        return _pack(form, weight, dtype, for_gradient, None)
    kept, key, state = _packed.setdefault(weight, {}), (dtype, for_gradient, form.isa), (period, weight.data_ptr())
    known_state, panels = kept.get(key, (None, None))
    if panels is None or known_state != state:
        panels = _pack(form, weight, dtype, for_gradient, panels)
        kept[key] = (state, panels)
    return panels


def _pack(form: Form, weight: Tensor, dtype: torch.dtype, for_gradient: bool, panels: Tensor | None) -> Tensor:
    """Pack a weight into the memory of ``panels``, or into new memory."""
    name, matrix = SUFFIXES[dtype], rows(weight.detach())
    num_out, num_in = matrix.shape
    columns, depth = (num_in, num_out) if for_gradient else (num_out, num_in)
    size = form.integer(f"linear_packed_bytes_{name}", columns, depth)
    if panels is None or panels.numel() != size:
        panels = torch.empty(size, dtype=torch.uint8)
    threads = torch.get_num_threads()
    form(f"linear_pack_{name}", matrix, matrix.stride(0), num_out, num_in, int(for_gradient), panels, threads)
    return panels


def _product(
    form: Form,
    x_MK: Tensor,
    panels: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor | None = None,
    *,
    for_gradient: bool = False,
) -> Tensor:
    """Return ``x Wᵀ + b``, or ``x W`` for a gradient, ``[M, columns]``, written into ``out`` if given."""
    (num_rows, depth), columns = x_MK.shape, weight.shape[-1]
    if not for_gradient:
        columns = weight.numel() // columns
    y_MN = x_MK.new_empty(num_rows, columns) if out is None else out
    bias = None if bias is None else bias.detach().contiguous()
    form(
        f"linear_product_{SUFFIXES[x_MK.dtype]}", x_MK, x_MK.stride(0), panels, num_rows, columns, depth, 0, bias,
        None, 0, None, None, 0, y_MN, columns, torch.get_num_threads(),
    )  # fmt: skip
    return y_MN


def _add_weight_gradient(
    form: Form, gradient: Tensor, x: Tensor, of_weight: Tensor, of_bias: Tensor | None, *, accumulate: bool
) -> None:
    """Store, or add, the gradients of weight and bias in contiguous fp32 tensors."""
    g_MN, x_MK = rows(gradient), rows(x)
    form(
        f"linear_weight_gradient_{SUFFIXES[x.dtype]}", g_MN, g_MN.stride(0), x_MK, x_MK.stride(0), len(x_MK),
        g_MN.shape[1], x_MK.shape[1], of_weight, of_bias, int(accumulate), torch.get_num_threads(),
    )  # fmt: skip


def _agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare all products with PyTorch's in float64, on sizes that no block divides."""
    generator = torch.Generator().manual_seed(0)
    x, g, weight, bias = (torch.randn(shape, generator=generator) for shape in ((55, 131), (55, 75), (75, 131), (75,)))
    x, g = x.to(dtype), g.to(dtype)
    y = _product(form, x, _pack(form, weight, dtype, False, None), weight, bias)
    of_x = _product(form, g, _pack(form, weight, dtype, True, None), weight, None, for_gradient=True)
    of_weight, of_bias = torch.ones(75, 131), torch.ones(75)
    _add_weight_gradient(form, g, x, of_weight, of_bias, accumulate=True)
    exact_x, exact_g, exact_weight = x.double(), g.double(), weight.to(dtype).double()
    pairs = (
        (y, exact_x @ exact_weight.t() + bias),
        (of_x, exact_g @ exact_weight),
        (of_weight, exact_g.t() @ exact_x + 1),
        (of_bias, exact_g.sum(0) + 1),
    )
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    return all(torch.allclose(ours.double(), exact, rtol=tolerance, atol=tolerance) for ours, exact in pairs)


@functools.cache
def _trial_weights() -> tuple[Tensor, Tensor]:
    return torch.nn.Parameter(torch.ones(384, 384)), torch.empty(384, 384)


def _trial(form: Form | None, dtype: torch.dtype) -> None:
    x, g = torch.ones(2, 192, 384, dtype=dtype)
    weight, of_weight = _trial_weights()
    if form is None:
        functional.linear(x, weight.to(dtype), weight[0].to(dtype))
        _ = g @ weight.to(dtype), g.t() @ x, g.sum(0)
    else:
        with kernels.weights_unchanged():
            panels = [_panels(form, weight, dtype, for_gradient=of_input) for of_input in (False, True)]
        _product(form, x, panels[0], weight, weight[0])
        _product(form, g, panels[1], weight, None, for_gradient=True)
        _add_weight_gradient(form, g, x, of_weight, of_weight[0].clone(), accumulate=False)


KERNELS = (
    Kernel("linear_f32", torch.float32, _agrees, _trial),
    Kernel("linear_bf16", torch.bfloat16, _agrees, _trial),
)
