"""RMS norm (Zhang and Sennrich 2019), computed in fp32; it keeps its input and one number per row.

::

    r = 1 / √(mean(x²) + ε)      y = x r g      dx = r (g dy − x r · mean(g dy · x r))      dg = Σ dy · x r
"""

from typing import Any

import torch
from torch import Tensor

from hornbook.ops.native import layer_norm as native_norm
from hornbook.ops.native.kernels import form_of
from hornbook.ops.native.library import Form


class _RMSNorm(torch.autograd.Function):
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


def rms_norm(x: Tensor, weight_D: Tensor | None, epsilon: float) -> Tensor:
    """Return ``x / √(mean(x²) + ε) · weight`` ``[..., D]`` in the dtype of ``x``.

    Args:
        x: ``[..., D]``, fp32, bf16 or fp16.
        weight_D: gain, of any floating dtype, or None; its gradient is summed in fp32.
        epsilon: added to the mean square.
    """
    y: Tensor
    if (form := _native_form(x, weight_D)) is not None:
        y = native_norm.norm(x, weight_D, None, epsilon, form.isa, True)[0]
    else:
        y = _RMSNorm.apply(x, weight_D, epsilon)  # type: ignore[no-untyped-call]
    return y


def rms_norm_beside(x: Tensor, weight_D: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return ``x`` and its norm, for ``x + f(norm(x))``; arguments as for ``rms_norm``."""
    if (form := _native_form(x, weight_D)) is not None:
        return native_norm.norm_beside(x, weight_D, None, epsilon, form.isa, is_rms=True)
    return x, rms_norm(x, weight_D, epsilon)


def _native_form(x: Tensor, weight_D: Tensor | None) -> Form | None:
    is_fp32 = weight_D is None or weight_D.dtype == torch.float32
    return form_of("layer_norm", x) if is_fp32 else None
