"""Layer and RMS norm on a CPU, with gain and bias in fp32 and their gradients summed in fp32.

``Norm`` is for residual branches, ``x + f(norm(x))``: it returns both ``x`` and the norm, so that the backward pass
adds the two gradients of ``x`` while it computes one of them.

``mixed_layer_norm`` does without a native form, in bf16. PyTorch's backward pass sums the gradients of gain and bias
over tokens in the dtype of the activations. A bf16 sum stops growing once an addend is less than 1/512 of it, so over
16,384 tokens these gradients were up to 75 % off. So PyTorch's layer norm computes only the gradient of the input, and
the backward pass of its batch norm, which reads bf16 and accumulates in fp32, the sums over tokens::

    x_NM --layer norm, fp32 gain and bias--> y_NM, mean_N, inverse_std_N
    g_NM --layer norm's backward-----------> dx_NM
    normed_NM = (x - mean) · inverse_std     weight: Σ_n g · normed      bias: Σ_n g

On other devices, PyTorch accumulates in fp32, but requires gain and bias in the dtype of the activations.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.ops.native.kernels import SUFFIXES, Form, rows
from hornbook.ops.native.trials import Kernel
from hornbook.ops.operators import operator, scalar_with_gradient, shapes_of


@operator()
def norm(
    x: Tensor, weight_D: Tensor | None, bias_D: Tensor | None, epsilon: float, isa: str, is_rms: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm of ``x`` ``[..., D]`` in its dtype, and the rows' means and inverse deviations, fp32 ``[N]``.

    Args:
        x: fp32 or bf16.
        weight_D: gain, fp32; None for 1.
        bias_D: fp32; None for 0.
        epsilon: added to the variance.
        isa: instruction set of the form for this operator and its gradients.
        is_rms: whether means count as 0 (RMS norm, Zhang and Sennrich 2019), and are not returned.
    """
    x_ND, y = rows(x), x.new_empty(x.shape)
    means_N, inverse_stds_N = (
        x.new_empty(size, dtype=torch.float32) for size in (0 if is_rms else len(x_ND), len(x_ND))
    )
    parameters = (None if parameter_D is None else parameter_D.contiguous() for parameter_D in (weight_D, bias_D))
    Form(isa)(
        f"{'rms' if is_rms else 'layer'}_norm_forward_{SUFFIXES[x.dtype]}", x_ND, *x_ND.shape, x_ND.stride(0),
        *parameters, torch.tensor(epsilon, dtype=torch.float32), y, means_N, inverse_stds_N,
        torch.get_num_threads(),
    )  # fmt: skip
    return y, means_N, inverse_stds_N


@shapes_of("norm")
def _(
    x: Tensor, weight_D: Tensor | None, bias_D: Tensor | None, epsilon: float, isa: str, is_rms: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    num_rows = x.shape[:-1].numel()
    means_N, inverse_stds_N = (x.new_empty(size, dtype=torch.float32) for size in (0 if is_rms else num_rows, num_rows))
    return x.new_empty(x.shape), means_N, inverse_stds_N


@operator()
def norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight_D: Tensor | None,
    bias_D: Tensor | None,
    means_N: Tensor,
    inverse_stds_N: Tensor,
    residual: Tensor | None,
    isa: str,
    is_rms: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``x``, plus ``residual`` if given, gain and bias, empty for None.

    Arguments as for ``norm``.
    """
    x_ND, of_x = rows(x), x.new_empty(x.shape)
    of_weight_D, of_bias_D = (
        x.new_empty(0 if of is None else of.shape, dtype=torch.float32) for of in (weight_D, bias_D)
    )
    Form(isa)(
        f"{'rms' if is_rms else 'layer'}_norm_backward_{SUFFIXES[x.dtype]}", gradient.contiguous(), x_ND, *x_ND.shape,
        x_ND.stride(0), None if weight_D is None else weight_D.contiguous(), means_N, inverse_stds_N,
        None if residual is None else residual.contiguous(), of_x, None if weight_D is None else of_weight_D,
        None if bias_D is None else of_bias_D, torch.get_num_threads(),
    )  # fmt: skip
    return of_x, of_weight_D, of_bias_D


@shapes_of("norm_backward")
def _(
    gradient: Tensor, x: Tensor, weight_D: Tensor | None, bias_D: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    of_weight_D, of_bias_D = (
        x.new_empty(0 if of is None else of.shape, dtype=torch.float32) for of in (weight_D, bias_D)
    )
    return x.new_empty(x.shape), of_weight_D, of_bias_D


class Norm(torch.autograd.Function):
    """Native norms beside what they map."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_D: Tensor | None, bias_D: Tensor | None, *options: Any
    ) -> tuple[Tensor, ...]:
        """Return ``x`` and its norm; arguments as for ``norm``."""
        normed, *statistics = norm(x, weight_D, bias_D, *options)
        ctx.save_for_backward(x, weight_D, bias_D, *statistics)
        ctx.options = options[1:]
        ctx.set_materialize_grads(False)
        return x.view_as(x), normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments, given those of ``x`` and its norm."""
        residual, gradient = gradients
        x, weight_D, bias_D, *statistics = ctx.saved_tensors  # once: recomputation allows no more
        if gradient is None:  # of a norm that nothing uses
            return residual, *[None] * 5
        of_x, of_weight_D, of_bias_D = norm_backward(gradient, x, weight_D, bias_D, *statistics, residual, *ctx.options)
        return of_x, None if weight_D is None else of_weight_D, None if bias_D is None else of_bias_D, None, None, None


def mixed_layer_norm(x: Tensor, weight_D: Tensor, bias_D: Tensor, epsilon: float) -> Tensor:
    """Return the layer norm of bf16 ``x`` ``[..., D]`` in its dtype, with gain and bias in fp32."""
    y: Tensor = _MixedLayerNorm.apply(x, weight_D, bias_D, epsilon)  # type: ignore[no-untyped-call]
    return y


class _MixedLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, bias_D: Tensor, epsilon: float) -> Tensor:
        y, mean, inverse_std = torch.native_layer_norm(x, weight_D.shape, weight_D, bias_D, epsilon)
        ctx.save_for_backward(x, weight_D, bias_D, mean, inverse_std)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        gradient = gradients[0].contiguous()
        x, weight_D, bias_D, mean, inverse_std = ctx.saved_tensors
        of_x, _, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, x, weight_D.shape, mean, inverse_std, weight_D, bias_D, [True, False, False]
        )
        rows = (-1, len(weight_D))
        normed_ND = _normalize(x.reshape(rows), mean.flatten(), inverse_std.flatten())
        return of_x, *_affine_gradients(gradient.view(rows), normed_ND), None


def _normalize(x_ND: Tensor, mean_N: Tensor, inverse_std_N: Tensor) -> Tensor:
    """Return ``(x - mean) · inverse_std``, computed in fp32, in the dtype of ``x``.

    Batch norm with the rows as channels takes one pass; elementwise operations take three, or round the statistics.
    """
    ones_N = torch.ones_like(mean_N)
    normed_1ND, _, _ = torch.native_batch_norm(
        x_ND.unsqueeze(0), inverse_std_N, None, mean_N, ones_N, training=False, momentum=0.0, eps=0.0
    )
    return normed_1ND.squeeze(0)


def _affine_gradients(gradient_ND: Tensor, normed_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``Σ_n g · normed`` and ``Σ_n g``, ``[D]``, of bf16 inputs, accumulated in fp32."""
    zeros_D, ones_D = torch.tensor([[0.0], [1.0]]).repeat(1, gradient_ND.shape[1])
    if not len(gradient_ND):  # PyTorch's batch norm divides by the number of rows
        return zeros_D, zeros_D
    _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
        gradient_ND, normed_ND, ones_D, zeros_D, ones_D, None, None, False, 0.0, [False, True, True]
    )
    return of_weight, of_bias


def _agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare a form with float64, on sizes that no block divides: layer norm, RMS norm, and that without gain."""
    generator = torch.Generator().manual_seed(0)
    x, gradient, residual = (torch.randn(45, 37, generator=generator).to(dtype) for _ in range(3))
    weight_D, bias_D = torch.randn(2, 37, generator=generator)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    cases: tuple[tuple[Tensor | None, Tensor | None, bool], ...] = (
        (weight_D, bias_D, False),
        (weight_D, None, True),
        (None, None, True),
    )
    for gain_D, shift_D, is_rms in cases:
        y, means_N, scales_N = norm(x, gain_D, shift_D, 1e-5, form.isa, is_rms)
        of_all = norm_backward(gradient, x, gain_D, shift_D, means_N, scales_N, residual, form.isa, is_rms)
        pairs = zip((y, *of_all), exact_norm(x, gain_D, shift_D, gradient, residual, is_rms), strict=True)
        if not all(torch.allclose(own.double(), exact, rtol=tolerance, atol=tolerance) for own, exact in pairs):
            return False
    return True


def exact_norm(
    x: Tensor,
    weight_D: Tensor | None,
    bias_D: Tensor | None,
    gradient: Tensor,
    residual: Tensor | None,
    is_rms: bool,
    epsilon: float = 1e-5,
) -> tuple[Tensor, ...]:
    """Return the norm and the gradients of ``x``, gain and bias by their formulas in float64; see ``norm_backward``."""
    exact, g = x.double(), gradient.double()
    deviations = exact if is_rms else exact - exact.mean(-1, keepdim=True)
    scale = (deviations.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    normed = deviations * scale
    scaled = g if weight_D is None else g * weight_D.double()
    through = scaled - normed * (scaled * normed).mean(-1, keepdim=True)
    of_x = (through if is_rms else through - scaled.mean(-1, keepdim=True)) * scale
    y = normed if weight_D is None else normed * weight_D.double()
    none = x.new_empty(0, dtype=torch.float64)
    return (
        y if bias_D is None else y + bias_D.double(),
        of_x if residual is None else of_x + residual.double(),
        none if weight_D is None else (g * normed).flatten(0, -2).sum(0),
        none if bias_D is None else g.flatten(0, -2).sum(0),
    )


def _trial(form: Form | None, dtype: torch.dtype, hidden_size: int) -> None:
    x, gradient = torch.ones(2, (1 << 20) // hidden_size or 1, hidden_size, dtype=dtype)
    weight_D, bias_D = torch.ones(2, hidden_size)
    if form is not None:
        _, means_N, inverse_stds_N = norm(x, weight_D, bias_D, 1e-5, form.isa)
        norm_backward(gradient, x, weight_D, bias_D, means_N, inverse_stds_N, gradient, form.isa, False)
        return
    with torch.enable_grad():
        leaf, gain_D, shift_D = (tensor.detach().requires_grad_() for tensor in (x, weight_D, bias_D))
        if dtype == torch.float32:
            y = functional.layer_norm(leaf, (hidden_size,), gain_D, shift_D, 1e-5)
        else:
            y = mixed_layer_norm(leaf, gain_D, shift_D, 1e-5)
        ends = [scalar_with_gradient(of, gradient) for of in (y, leaf)]
        torch.autograd.grad(ends, (leaf, gain_D, shift_D))


KERNELS = (
    Kernel("layer_norm_f32", torch.float32, _agrees, _trial, sizes=("hidden_size",)),
    Kernel("layer_norm_bf16", torch.bfloat16, _agrees, _trial, sizes=("hidden_size",)),
)
