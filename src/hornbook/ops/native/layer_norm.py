"""Layer norm on a CPU, with gain and bias in fp32 and their gradients summed in fp32.

``layer_norm_beside`` is for residual branches, ``x + f(norm(x))``: it returns both ``x`` and the norm, so that the
backward pass adds the two gradients of ``x`` while it computes one of them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.ops.mixed_layer_norm import mixed_layer_norm
from hornbook.ops.native.library import SUFFIXES, Form, Kernel, rows
from hornbook.ops.operators import operator, shapes_of


@operator(has_gradient=True)
def layer_norm(x: Tensor, weight_D: Tensor, bias_D: Tensor, epsilon: float, isa: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm of ``x`` ``[..., D]`` in its dtype, and the rows' means and inverse deviations, fp32 ``[N]``.

    Args:
        x: fp32 or bf16.
        weight_D: gain, fp32.
        bias_D: fp32.
        epsilon: added to the variance.
        isa: instruction set of the form for this operator and its gradients.
    """
    return _forward(Form(isa), x, weight_D, bias_D, epsilon)


@shapes_of("layer_norm")
def _(x: Tensor, weight_D: Tensor, bias_D: Tensor, epsilon: float, isa: str) -> tuple[Tensor, Tensor, Tensor]:
    num_rows = x.numel() // x.shape[-1]
    means_N, inverse_stds_N = (x.new_empty(num_rows, dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), means_N, inverse_stds_N


@operator()
def layer_norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight_D: Tensor,
    means_N: Tensor,
    inverse_stds_N: Tensor,
    residual: Tensor | None,
    isa: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``x``, plus ``residual`` if given, gain and bias; arguments as for ``layer_norm``."""
    return _backward(Form(isa), gradient, x, weight_D, means_N, inverse_stds_N, residual)


@shapes_of("layer_norm_backward")
def _(gradient: Tensor, x: Tensor, weight_D: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty_like(weight_D), torch.empty_like(weight_D)


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight_D, _, _, ctx.isa = inputs
    ctx.save_for_backward(x, weight_D, *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _of_inputs(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    return *layer_norm_backward(gradient, *ctx.saved_tensors, None, ctx.isa), None, None


torch.library.register_autograd("hornbook::layer_norm", _of_inputs, setup_context=_setup_context)


def layer_norm_beside(x: Tensor, weight_D: Tensor, bias_D: Tensor, epsilon: float, isa: str) -> tuple[Tensor, Tensor]:
    """Return ``x`` and its norm; arguments as for ``layer_norm``."""
    beside, normed = _Beside.apply(x, weight_D, bias_D, epsilon, isa)  # type: ignore[no-untyped-call]
    return beside, normed


class _Beside(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_D: Tensor, bias_D: Tensor, epsilon: float, isa: str
    ) -> tuple[Tensor, Tensor]:
        y, *statistics = layer_norm(x, weight_D, bias_D, epsilon, isa)
        ctx.isa = isa
        ctx.save_for_backward(x, weight_D, *statistics)
        return x.view_as(x), y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        residual, gradient = gradients
        return *layer_norm_backward(gradient, *ctx.saved_tensors, residual, ctx.isa), None, None


def _forward(form: Form, x: Tensor, weight_D: Tensor, bias_D: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    x_ND = rows(x)
    y = x.new_empty(x.shape)
    means_N, inverse_stds_N = (x.new_empty(len(x_ND), dtype=torch.float32) for _ in range(2))
    form(
        f"layer_norm_forward_{SUFFIXES[x.dtype]}", x_ND, len(x_ND), x_ND.shape[1], x_ND.stride(0),
        weight_D.contiguous(), bias_D.contiguous(), torch.tensor(epsilon, dtype=torch.float32), y, means_N,
        inverse_stds_N, torch.get_num_threads(),
    )  # fmt: skip
    return y, means_N, inverse_stds_N


def _backward(
    form: Form,
    gradient: Tensor,
    x: Tensor,
    weight_D: Tensor,
    means_N: Tensor,
    inverse_stds_N: Tensor,
    residual: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    x_ND, of_x = rows(x), x.new_empty(x.shape)
    of_weight_D, of_bias_D = torch.empty_like(weight_D), torch.empty_like(weight_D)
    form(
        f"layer_norm_backward_{SUFFIXES[x.dtype]}", gradient.contiguous(), x_ND, len(x_ND), x_ND.shape[1],
        x_ND.stride(0), weight_D.contiguous(), means_N, inverse_stds_N,
        None if residual is None else residual.contiguous(), of_x, of_weight_D, of_bias_D, torch.get_num_threads(),
    )  # fmt: skip
    return of_x, of_weight_D, of_bias_D


def _agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare a form with PyTorch's in float64, on sizes that no block divides."""
    generator = torch.Generator().manual_seed(0)
    x, gradient, residual = (torch.randn(45, 37, generator=generator).to(dtype) for _ in range(3))
    weight_D, bias_D = torch.randn(2, 37, generator=generator)
    y, means_N, inverse_stds_N = _forward(form, x, weight_D, bias_D, 1e-5)
    ours = (y, *_backward(form, gradient, x, weight_D, means_N, inverse_stds_N, residual))
    exact, g = x.double(), gradient.double()
    deviations = exact - exact.mean(1, keepdim=True)
    scale = (deviations.square().mean(1, keepdim=True) + 1e-5).rsqrt()
    normed, scaled = deviations * scale, g * weight_D
    through = scaled - scaled.mean(1, keepdim=True) - normed * (scaled * normed).mean(1, keepdim=True)
    right = (normed * weight_D + bias_D, through * scale + residual.double(), (g * normed).sum(0), g.sum(0))
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    pairs = zip(ours, right, strict=True)
    return all(torch.allclose(own.double(), exact, rtol=tolerance, atol=tolerance) for own, exact in pairs)


def _trial(form: Form | None, dtype: torch.dtype) -> None:
    x, gradient = torch.ones(2, 2048, 384, dtype=dtype)
    weight_D, bias_D = torch.ones(2, 384)
    if form is not None:
        _, means_N, inverse_stds_N = _forward(form, x, weight_D, bias_D, 1e-5)
        _backward(form, gradient, x, weight_D, means_N, inverse_stds_N, gradient)
        return
    with torch.enable_grad():
        leaf, gain_D, shift_D = (tensor.detach().requires_grad_() for tensor in (x, weight_D, bias_D))
        if dtype == torch.float32:
            y = functional.layer_norm(leaf, (384,), gain_D, shift_D, 1e-5)
        else:
            y = mixed_layer_norm(leaf, gain_D, shift_D, 1e-5)
        torch.autograd.grad((y, leaf), (leaf, gain_D, shift_D), (gradient, gradient))


KERNELS = (
    Kernel("layer_norm_f32", torch.float32, _agrees, _trial),
    Kernel("layer_norm_bf16", torch.bfloat16, _agrees, _trial),
)
