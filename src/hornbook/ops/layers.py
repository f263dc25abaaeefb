"""The arithmetic of the layers: linear maps, activations, layer norm and dropout, as functions on tensors.

Layer norm: PyTorch's backward pass on a CPU adds the gradients of gain and bias over tokens in the dtype of the
activations. A bf16 sum stops growing once an addend is less than 1/512 of it, so over 16,384 tokens these gradients
were up to 75 % off. Here PyTorch computes the gradient of the input alone, and the sums over tokens come from the
backward pass of its batch norm, which reads bf16 and accumulates in fp32. On other devices PyTorch accumulates in fp32
itself, but takes gain and bias only in the dtype of the activations::

    x_NM --layer norm, fp32 gain and bias--> y_NM, mean_N, inverse_std_N
    g_NM --layer norm's backward-----------> dx_NM
    normed_NM = (x - mean) · inverse_std     weight: Σ_n g · normed      bias: Σ_n g

Dropout needs no random state: whether an element is kept is a hash of its token's key, the dropout site and the column.
Every token of a batch carries a key, a function of (seed, sample, position); every dropout of the model has a site
number. An element is dropped when ``hash(key, site, column) < p``::

    keys_BT  --+ site--> mix -->  [B, T, 1] + columns --> mix --> [B, T, D] < p ?

So packing, micro-batching, recomputation and resuming do not change dropout, and nothing is saved: the backward pass
computes the mask again. The mixer is the 32-bit ``lowbias32`` of the hash-prospector project (Wellons 2018).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.ops.native.kernels import FORMS, form_of
from hornbook.ops.native.linear import linear as native_linear
from hornbook.ops.tensor_parallel import cut_linear
from hornbook.parallel.cuts import is_cut, local


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

_GOLDEN = 0x9E3779B1 - (1 << 32)
_FIRST = 0x7FEB352D
_SECOND = 0x846CA68B - (1 << 32)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x Wᵀ + b`` ``[..., num_out]`` in the dtype of ``x`` ``[..., num_in]``.

    Args:
        x: of any floating dtype.
        weight: ``[num_out, num_in]``, fp32, or a stack ``[3, num_out / 3, num_in]``; its gradient is fp32. Where it is
            cut over ranks, see ``cut_linear``.
        bias: ``[num_out]``, fp32, or a stack, or None.
    """
    if is_cut(weight):
        return cut_linear(x, weight, bias)
    if FORMS and weight.dtype == torch.float32 and (form := form_of("linear", x)) is not None:
        y: Tensor = native_linear(x, weight, bias, form.isa)
        return y
    if weight.dim() > 2:
        weight, bias = weight.flatten(0, 1), None if bias is None else bias.flatten()
    return functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def grouped_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return independent linear maps side by side, each of its share of the input, in the dtype of ``x``.

    Args:
        x: ``[..., num_in]``, of any floating dtype.
        weight: ``[num_groups, num_out / num_groups, num_in / num_groups]``, fp32.
        bias: ``[num_out]``, fp32.

    Where weight and bias are cut by groups over ranks, input and output are the rank's share.
    """
    weight, bias = local(weight), local(bias)
    parts, weights = x.chunk(len(weight), -1), weight.to(x.dtype).unbind(0)
    mapped = [functional.linear(part, matrix) for part, matrix in zip(parts, weights, strict=True)]
    return torch.cat(mapped, -1) + bias.to(x.dtype)


def cast_for_few_rows(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``weight`` ``[num_out, num_in]`` in ``dtype``, detached, in the memory layout that suits one or few rows.

    MKL's fp32 product of a matrix and a vector reads columns up to twice as fast as rows; oneDNN's bf16 does not.
    """
    weight = weight.detach().to(dtype)
    return weight.t().contiguous().t() if weight.device.type == "cpu" and dtype == torch.float32 else weight


def sinusoidal(positions: Tensor, size: int) -> Tensor:
    """Return sines and cosines of positions, ``[..., size]`` fp32 (Vaswani et al. 2017, section 3.5).

    Args:
        positions: ``[...]`` int64.
        size: number of columns, even: sines in the even ones, cosines in the odd ones.
    """
    columns = torch.arange(0, size, 2, device=positions.device)
    angles = positions.unsqueeze(-1) * torch.exp(columns * (-math.log(10_000.0) / size))
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


def layer_norm(x: Tensor, weight_D: Tensor, bias_D: Tensor, epsilon: float) -> Tensor:
    """Normalize ``[..., D]`` to zero mean and unit variance, then scale and shift, in the dtype of ``x``.

    Args:
        x: fp32 or bf16.
        weight_D: gain, fp32, or what ``affine_dtype`` returns.
        bias_D: of the same dtype.
        epsilon: added to the variance.
    """
    dtype = affine_dtype(x.dtype, x.device)
    weight_D, bias_D = weight_D.to(dtype), bias_D.to(dtype)
    if dtype != x.dtype and torch.is_grad_enabled():
        y: Tensor = _MixedLayerNorm.apply(x, weight_D, bias_D, epsilon)  # type: ignore[no-untyped-call]
        return y
    return functional.layer_norm(x, weight_D.shape, weight_D, bias_D, epsilon)


def affine_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype in which gain and bias are applied to activations of ``dtype``: fp32 to bf16 on a CPU."""
    return torch.float32 if device.type == "cpu" and dtype == torch.bfloat16 else dtype


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

    Batch norm with the rows as its channels does it in one pass; plain operations take three, or round the statistics.
    """
    ones_N = torch.ones_like(mean_N)
    normed_1ND, _, _ = torch.native_batch_norm(
        x_ND.unsqueeze(0), inverse_std_N, None, mean_N, ones_N, training=False, momentum=0.0, eps=0.0
    )
    return normed_1ND.squeeze(0)


def _affine_gradients(gradient_ND: Tensor, normed_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``Σ_n g · normed`` and ``Σ_n g``, ``[D]``, read in bf16 and accumulated in fp32."""
    zeros_D, ones_D = torch.tensor([[0.0], [1.0]]).repeat(1, gradient_ND.shape[1])
    if not len(gradient_ND):  # PyTorch's batch norm divides by the number of rows
        return zeros_D, zeros_D
    _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
        gradient_ND, normed_ND, ones_D, zeros_D, ones_D, None, None, False, 0.0, [False, True, True]
    )
    return of_weight, of_bias


def mix(x: Tensor) -> Tensor:
    """Scramble int32 values of any shape in place; a bijection of 32-bit words."""
    scratch = torch.empty_like(x)
    _fold(x, 16, scratch).mul_(_FIRST)
    _fold(x, 15, scratch).mul_(_SECOND)
    return _fold(x, 16, scratch)


def _fold(x: Tensor, shift: int, scratch: Tensor) -> Tensor:
    """``x ^= x >> shift`` of words without a sign; memory that is used again stays in the cache."""
    torch.bitwise_right_shift(x, shift, out=scratch)
    scratch &= (1 << (32 - shift)) - 1
    x ^= scratch
    return x


def keep_mask(keys: Tensor, site: int, num_columns: int, probability: float) -> Tensor:
    """Return the elements that survive.

    Args:
        keys: ``[...]`` int64 in [0, 2³²), one a token.
        site: number of the dropout layer in the model.
        num_columns: size of the dimension that is added.
        probability: share of elements to drop, in [0, 1).

    Returns:
        ``[..., num_columns]`` bool.
    """
    keys_int32 = torch.where(keys >= 1 << 31, keys - (1 << 32), keys).to(torch.int32)
    token = mix(keys_int32 ^ mix(torch.full_like(keys, site + 1, dtype=torch.int32)))
    columns = torch.arange(num_columns, dtype=torch.int32, device=keys.device) * _GOLDEN
    hashed = mix(token.unsqueeze(-1) + columns)
    hashed &= 0x7FFFFFFF
    return hashed >= int(probability * (1 << 31))


def dropout(x: Tensor, keys: Tensor, site: int, probability: float) -> Tensor:
    """Return ``x`` ``[..., C]`` with elements dropped and the others scaled (inverted dropout, Srivastava et al. 2014).

    Args:
        x: of any floating dtype.
        keys: ``[...]`` int64 in [0, 2³²), one a token.
        site: number of the dropout layer in the model.
        probability: share of elements to drop, in [0, 1).
    """
    result: Tensor = _HashedDropout.apply(x, keys, site, probability)  # type: ignore[no-untyped-call]
    return result


class _HashedDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, site: int, probability: float) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.site, ctx.probability = site, probability
        return _drop(x, keys, site, probability)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (keys,) = ctx.saved_tensors
        return _drop(gradients[0], keys, ctx.site, ctx.probability), None, None, None


def _drop(x: Tensor, keys: Tensor, site: int, probability: float) -> Tensor:
    return (x * keep_mask(keys, site, x.shape[-1], probability)).mul_(1.0 / (1.0 - probability))
