"""Layer norm in bf16 on a CPU by PyTorch's operators, with gain and bias in fp32 and accurate gradients.

On a CPU, PyTorch's backward pass sums the gradients of gain and bias over tokens in the dtype of the activations. A
bf16 sum stops growing once an addend is less than 1/512 of it, so over 16,384 tokens these gradients were up to 75 %
off. Here, PyTorch's layer norm computes only the gradient of the input, and the backward pass of its batch norm, which
reads bf16 and accumulates in fp32, the sums over tokens. On other devices, PyTorch accumulates in fp32, but requires
gain and bias in the dtype of the activations::

    x_NM --layer norm, fp32 gain and bias--> y_NM, mean_N, inverse_std_N
    g_NM --layer norm's backward-----------> dx_NM
    normed_NM = (x - mean) · inverse_std     weight: Σ_n g · normed      bias: Σ_n g
"""

from typing import Any

import torch
from torch import Tensor


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
