"""Updates on a CPU: Adam and AdamW in one pass over memory, and Muon's polynomials of bf16 matrices.

The pass has clipping, decay, both moments and the step. Of the polynomials, symmetric products are multiplied on one
side of the diagonal only. Both change or read tensors outside of autograd, so they are plain functions.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from hornbook.ops.native.kernels import Form
from hornbook.ops.native.trials import Kernel

Coefficients = Sequence[tuple[float, float, float]]
_OBLONG: Final = 1.5
"""Aspect ratio from which polynomials of the Gram matrix take less time."""


class Numbers(NamedTuple):
    """The hyperparameters of an update; t counts from 1, and is infinite without bias correction."""

    learning_rate: float
    decay: float
    beta1: float
    beta2: float
    epsilon: float
    t: float
    decoupled: bool


def adamw(
    form: Form, weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, numbers: Numbers, clip: float = 1.0
) -> None:
    """Update weight and moments, contiguous fp32 tensors of equal size, in place; scale the gradient by ``clip``."""
    rate, decay, beta1, beta2, epsilon, t, decoupled = numbers
    keep, added = (1.0 - rate * decay, 0.0) if decoupled else (1.0, decay)
    step, unbiased = rate / (1.0 - beta1**t), 1.0 / math.sqrt(1.0 - beta2**t)
    values = (clip, keep, added, beta1, beta2, 1.0 - beta2, step, unbiased, epsilon)
    settings = torch.tensor(values, dtype=torch.float32)
    form("adamw", weight, gradient, mean, square, weight.numel(), settings, torch.get_num_threads())


def _adamw_agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare two updates with float64, on a size that no vector divides, both decays."""
    generator = torch.Generator().manual_seed(0)
    weight, gradient, mean, square = torch.randn(4, 37, generator=generator)
    square.square_()
    for decoupled in (True, False):
        numbers = Numbers(1e-2, 0.1, 0.9, 0.95, 1e-8, 3.0, decoupled)
        w, g, m, v = weight.double(), gradient.double() * 0.5, mean.double(), square.double()
        adamw(form, weight, gradient, mean, square, numbers, clip=0.5)
        rate, decay, beta1, beta2, epsilon, t, _ = numbers
        if decoupled:
            w *= 1.0 - rate * decay
        else:
            g += decay * w
        m.mul_(beta1).add_(g, alpha=1.0 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
        w -= rate * m / (1.0 - beta1**t) / ((v / (1.0 - beta2**t)).sqrt() + epsilon)
        pairs = ((weight, w), (mean, m), (square, v))
        if not all(torch.allclose(ours.double(), right, rtol=1e-5, atol=1e-6) for ours, right in pairs):
            return False
    return True


def _adamw_trial(form: Form | None, dtype: torch.dtype) -> None:
    weight, gradient, mean, square = torch.ones(4, 1 << 18)
    if form is not None:
        adamw(form, weight, gradient, mean, square, Numbers(1e-3, 0.1, 0.9, 0.95, 1e-8, 1.0, True), clip=0.5)
        return
    torch._foreach_mul_([gradient], 0.5)
    torch._fused_adamw_(
        [weight], [gradient], [mean], [square], [], [torch.ones(())], amsgrad=False, lr=1e-3, beta1=0.9, beta2=0.95,
        weight_decay=0.1, eps=1e-8, maximize=False,
    )  # fmt: skip


def apply_polynomials(form: Form, x_NRC: Tensor, coefficients: Coefficients) -> Tensor:
    """Return ``a X + b (X Xᵀ) X + c (X Xᵀ)² X`` of each matrix for each triple of coefficients, one after the other.

    Args:
        form: of the products.
        x_NRC: bf16, contiguous, no more rows than columns.
        coefficients: a, b and c of each polynomial.
    """
    out_NRC = torch.empty_like(x_NRC)
    table = torch.tensor(coefficients, dtype=torch.float32)
    form("orthogonalize_bf16", x_NRC, *x_NRC.shape, table, len(table), out_NRC, torch.get_num_threads())
    return out_NRC


def apply_by_pytorch(x_NRC: Tensor, coefficients: Coefficients) -> Tensor:
    """Return the same for any dtype and device.

    For oblong matrices in fp32, it is ``Q X``, where Q is a polynomial of the Gram matrix G of X. A polynomial maps Q
    to ``(a + b G + c G²) Q`` and G to ``(a + b G + c G²)² G``; all of them commute. This takes 0.57 of the time at an
    aspect ratio of 4; in bf16, it is unstable.
    """
    if x_NRC.dtype != torch.float32 or x_NRC.shape[-1] < _OBLONG * x_NRC.shape[-2]:
        for a, b, c in coefficients:
            gram = x_NRC @ x_NRC.mT
            x_NRC = torch.baddbmm(x_NRC, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x_NRC, beta=a)
        return x_NRC
    gram = x_NRC @ x_NRC.mT
    factor = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device).expand_as(gram)
    for number, (a, b, c) in enumerate(coefficients):
        change = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor = torch.baddbmm(factor, factor, change, beta=a)
        if number + 1 < len(coefficients):
            for _ in range(2):
                gram = torch.baddbmm(gram, gram, change, beta=a)
    return factor @ x_NRC


_CUBIC = ((1.5, -0.5, 0.0), (1.875, -1.25, 0.375))


def _polynomials_agree(form: Form, dtype: torch.dtype) -> bool:
    """Compare with float64, on sizes that no vector divides."""
    x = torch.randn(2, 70, 131, generator=torch.Generator().manual_seed(0)).to(dtype) / 20.0
    exact = apply_by_pytorch(x.double(), _CUBIC)
    found = apply_polynomials(form, x, _CUBIC).double()
    return bool((found - exact).abs().max() <= 0.02 * exact.abs().max())


def _polynomials_trial(form: Form | None, dtype: torch.dtype) -> None:
    x = torch.ones(2, 256, 256, dtype=dtype) / 256.0
    if form is None:
        apply_by_pytorch(x, _CUBIC)
    else:
        apply_polynomials(form, x, _CUBIC)


KERNELS = (
    Kernel("adamw", None, _adamw_agrees, _adamw_trial),
    Kernel("orthogonalize_bf16", torch.bfloat16, _polynomials_agree, _polynomials_trial),
)
