"""The operators of the layers: linear layers, activations and norms (RMS norm: Zhang and Sennrich 2019)."""

import functools
import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.ops.dropout import dropout as hashed_dropout
from hornbook.ops.mixed_linear import Parameters, is_mixed, mixed_feed_forward, mixed_linear, mixed_stack
from hornbook.ops.native import dropout as native_dropout
from hornbook.ops.native import layer_norm as native_norm
from hornbook.ops.native.kernels import form_of
from hornbook.ops.native.linear import linear as native_linear
from hornbook.ops.tensor_parallel import current, cut_linear
from hornbook.ops.triton.norm_operators import MOST_COLUMNS
from hornbook.ops.triton.norm_operators import norm_beside as triton_norm
from hornbook.ops.triton.operators import chosen, triton_dropout
from hornbook.ops.triton.programs import Drop
from hornbook.parallel.ranks import is_cut, local


def relu_squared(x: Tensor) -> Tensor:
    """Return ``relu(x)²`` (So et al. 2021, Primer)."""
    return torch.relu(x).square()


ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "gelu": functional.gelu,  # BERT, erf
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),  # GPT-2's "gelu_new"
    "relu": torch.relu,
    "relu_squared": relu_squared,
    "silu": functional.silu,
}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x Wᵀ + b`` ``[..., num_out]`` in the dtype of ``x`` ``[..., num_in]``.

    Args:
        x: of any floating dtype.
        weight: ``[num_out, num_in]``, fp32, or a stack ``[3, num_out / 3, num_in]``; its gradient is fp32. For weights
            that are split over ranks, see ``cut_linear``.
        bias: ``[num_out]``, fp32, or a stack, or None.
    """
    if (form := form_of("linear", x, weight)) is not None:
        y: Tensor = native_linear(x, weight, bias, form.isa)[0]
        return y
    if x.is_cuda and is_mixed(x, weight):
        return mixed_linear(x, weight, bias)
    if is_cut(weight):
        return cut_linear(x, weight, bias)
    if weight.dim() > 2:
        weight, bias = weight.flatten(0, 1), None if bias is None else bias.flatten()
    return functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def stacked_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    """Return the outputs of each of a stack of layers; see ``linear``."""
    if x.is_cuda and is_mixed(x, weight):
        return mixed_stack(x, weight, bias)
    return torch.chunk(linear(x, weight, bias), len(weight), -1)


def activated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """Return ``f(x Wᵀ + b)`` with f from ``ACTIVATIONS``; other arguments as for ``linear``."""
    if x.is_cuda and is_mixed(x, weight):
        return mixed_linear(x, weight, bias, (activation, ACTIVATIONS[activation]))
    if (form := form_of("linear", x, weight)) is None:
        return ACTIVATIONS[activation](linear(x, weight, bias))
    h: Tensor = native_linear(x, weight, bias, form.isa, activation)[0]
    return h


class _Gated(torch.autograd.Function):
    """Keeps only its input: the activation is computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, activation: str) -> Tensor:
        ctx.save_for_backward(u)
        ctx.activation = activation
        gate, up = u.chunk(2, -1)
        return ACTIVATIONS[activation](gate) * up

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (u,), (gradient,) = ctx.saved_tensors, gradients
        gate, up = u.chunk(2, -1)
        with torch.enable_grad():
            active = ACTIVATIONS[ctx.activation](gate := gate.detach().requires_grad_())
        (of_gate,) = torch.autograd.grad(active, gate, gradient * up)
        return torch.cat((of_gate, gradient * active.detach()), -1), None


def gated(u: Tensor, activation: str) -> Tensor:
    """Return ``f(gate) · up`` ``[..., F]`` with f from ``ACTIVATIONS`` (Shazeer 2020), given both as ``[..., 2 F]``."""
    h: Tensor
    if (
        torch.compiler.is_compiling()
    ):  # the compiler recomputes what the class below does, whose gradient it cannot trace
        gate, up = u.chunk(2, -1)
        h = ACTIVATIONS[activation](gate) * up
    else:
        h = _Gated.apply(u, activation)  # type: ignore[no-untyped-call]
    return h


def feed_forward(x: Tensor, up: Parameters, down: Parameters, activation: str, *, is_gated: bool = False) -> Tensor:
    """Return ``f(x W₁ᵀ + b₁) W₂ᵀ + b₂`` with f from ``ACTIVATIONS``; native or Triton's products apply f and its slope.

    Args:
        x: of any floating dtype.
        up: ``W₁`` and ``b₁``, as for ``linear``.
        down: ``W₂`` and ``b₂``.
        activation: the name of f.
        is_gated: whether the first layer computes gate and up, and the second maps ``f(gate) · up``, see ``gated``.
    """
    slices = current.slices
    if x.is_cuda and slices is not None and slices.is_ordered and not torch.compiler.is_compiling():
        with current.having(slices._replace(is_ordered=False)):  # each token is mapped separately
            return feed_forward(x, up, down, activation, is_gated=is_gated)
    if (form := form_of("linear", x, up[0], down[0])) is None:
        if x.is_cuda and not is_gated and is_mixed(x, up[0], down[0]):
            return mixed_feed_forward(x, up, down, (activation, ACTIVATIONS[activation]))
        h = gated(linear(x, *up), activation) if is_gated else activated_linear(x, *up, activation)
        return linear(h, *down)
    h, u = native_linear(x, *up, form.isa, activation, is_gated)
    y: Tensor = native_linear(h.detach(), *down, form.isa, before=u, activation_before=activation)[0]
    return y


def dropout_add(x: Tensor, keys: Tensor, site: int, probability: float, residual: Tensor | None) -> Tensor:
    """Return ``drop(x)``, plus ``residual`` if it is given; arguments as for `hornbook.ops.dropout.dropout`."""
    if (form := form_of("dropout", x)) is not None:
        result: Tensor = native_dropout.dropout(x, residual, keys, site, probability, form.isa)
        return result
    if x.is_cuda and chosen("triton_dropout", x):
        fused: Tensor = triton_dropout(x, residual, keys, site, probability)
        return fused
    x = hashed_dropout(x, keys, site, probability)
    return x if residual is None else residual + x


def add_norm_of(
    x: Tensor,
    residual: Tensor,
    dropout: tuple[Tensor, int, float] | None,
    weight_D: Tensor | None,
    bias_D: Tensor | None,
    epsilon: float,
    *,
    centered: bool,
) -> tuple[Tensor, Tensor] | None:
    """Return ``residual + drop(x)`` and its norm, in one pass of Triton's; None if other kernels compute them.

    Args:
        x: ``[..., D]``, fp32, bf16 or fp16.
        residual: of the same shape and dtype.
        dropout: keys, site and probability, see `hornbook.ops.dropout.dropout`; None for none.
        weight_D: gain, or None.
        bias_D: of the norm, or None.
        epsilon: see ``norm_beside``.
        centered: layer norm rather than RMS norm.
    """
    if not (x.is_cuda and _is_tritons(x) and chosen("triton_dropout", x)):
        return None
    drop = Drop(*dropout) if dropout else None
    return triton_norm(x, weight_D, bias_D, epsilon, centered=centered, residual=residual, drop=drop)


def grouped_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return a grouped linear layer, in which each group of outputs depends on one group of inputs.

    If weight and bias are split over ranks by groups, input and output are the rank's share.

    Args:
        x: ``[..., num_in]``, of any floating dtype, which is that of the result.
        weight: ``[num_groups, num_out / num_groups, num_in / num_groups]``, fp32.
        bias: ``[num_out]``, fp32.
    """
    weight, bias = local(weight), local(bias)
    parts, weights = x.chunk(len(weight), -1), weight.to(x.dtype).unbind(0)
    mapped = [functional.linear(part, matrix) for part, matrix in zip(parts, weights, strict=True)]
    return torch.cat(mapped, -1) + bias.to(x.dtype)


def for_few_rows(weight: Tensor) -> Tensor:
    """Return ``weight`` ``[num_out, num_in]`` in the fastest memory layout for products with one or few rows.

    MKL's fp32 matrix-vector product reads columns up to twice as fast as rows; oneDNN's bf16 product does not.
    """
    return weight.t().contiguous().t() if weight.device.type == "cpu" and weight.dtype == torch.float32 else weight


def sinusoidal(positions: Tensor, size: int) -> Tensor:
    """Return sines and cosines of positions, ``[..., size]`` fp32 (Vaswani et al. 2017, section 3.5).

    Args:
        positions: ``[...]`` int64.
        size: number of columns, even; even columns are sines, odd ones cosines.
    """
    columns = torch.arange(0, size, 2, device=positions.device)
    angles = positions.unsqueeze(-1) * torch.exp(columns * (-math.log(10_000.0) / size))
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


def norm_beside(
    x: Tensor, weight_D: Tensor | None, bias_D: Tensor | None, epsilon: float, *, is_rms: bool = False
) -> tuple[Tensor, Tensor]:
    """Return ``x`` and its layer or RMS norm, in its dtype, for ``x + f(norm(x))``.

    Native and Triton's operators add the gradients of both in one pass.

    Args:
        x: ``[..., D]``, fp32, bf16 or fp16.
        weight_D: gain, in fp32 or the dtype of ``affine_dtype``, for an RMS norm of any floating dtype; None for 1.
        bias_D: of the same dtype; None for 0, with an RMS norm only.
        epsilon: added to the variance, or the mean square.
        is_rms: whether to return ``x / √(mean(x²) + ε) · weight``, rather than the deviations from the mean.
    """
    if (form := form_of("layer_norm", x, weight_D)) is not None:
        beside, normed = native_norm.Norm.apply(x, weight_D, bias_D, epsilon, form.isa, is_rms)  # type: ignore[no-untyped-call]
        return beside, normed
    if x.is_cuda and _is_tritons(x):
        return triton_norm(x, weight_D, bias_D, epsilon, centered=not is_rms)
    if is_rms:
        return x, _RMSNorm.apply(x, weight_D, epsilon)  # type: ignore[no-untyped-call]
    assert weight_D is not None and bias_D is not None, "a layer norm has a gain and a bias"
    dtype = affine_dtype(x.dtype, x.device)
    weight_D, bias_D = weight_D.to(dtype), bias_D.to(dtype)
    if dtype != x.dtype and torch.is_grad_enabled():
        return x, native_norm.mixed_layer_norm(x, weight_D, bias_D, epsilon)
    return x, functional.layer_norm(x, weight_D.shape, weight_D, bias_D, epsilon)


def affine_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of gain and bias for activations of ``dtype``: fp32 for 16 bits on a CPU, otherwise the same."""
    return torch.float32 if device.type == "cpu" and dtype in (torch.bfloat16, torch.float16) else dtype


class _RMSNorm(torch.autograd.Function):
    """Keeps its input and one number per row, ``r = 1 / √(mean(x²) + ε)``, of ``y = x r g``.

    ::

        dx = r (g dy − x r · mean(g dy · x r))      dg = Σ dy · x r
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor | None, epsilon: float) -> Tensor:
        exact = x.float()
        scale = torch.rsqrt(exact.square().mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(x, weight_D, scale)
        normed = exact * scale
        return (normed if weight_D is None else normed.mul_(weight_D.float())).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_D, scale = ctx.saved_tensors
        gradient, normed = gradients[0].float(), x.float() * scale
        of_weight = None
        if weight_D is not None:
            of_weight = (gradient * normed).flatten(0, -2).sum(0).to(weight_D.dtype)
            gradient = gradient * weight_D.float()
        of_x = (gradient - normed * (gradient * normed).mean(-1, keepdim=True)).mul_(scale)
        return of_x.to(x.dtype), of_weight, None


def _is_tritons(x: Tensor) -> bool:
    """Return whether Triton computes the norms of tokens like ``x``, which are on a GPU."""
    return chosen("triton_layer_norm", x) and x.shape[-1] <= MOST_COLUMNS
