"""Polynomials of bf16 matrices on a CPU, whose symmetric products are multiplied on one side of the diagonal only."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hornbook.ops.native.library import Form, Kernel

Coefficients = Sequence[tuple[float, float, float]]
_NAME = "orthogonalize_bf16"


def apply_polynomials(form: Form, x_NRC: Tensor, coefficients: Coefficients) -> Tensor:
    """Return ``a X + b (X Xᵀ) X + c (X Xᵀ)² X`` of each matrix for each triple of coefficients, one after the other.

    Args:
        form: of the products.
        x_NRC: bf16, contiguous, no more rows than columns.
        coefficients: a, b and c of each polynomial.
    """
    out_NRC = torch.empty_like(x_NRC)
    table = torch.tensor(coefficients, dtype=torch.float32)
    form(_NAME, x_NRC, *x_NRC.shape, table, len(table), out_NRC, torch.get_num_threads())
    return out_NRC


def apply_by_pytorch(x_NRC: Tensor, coefficients: Coefficients) -> Tensor:
    """Return the same for any dtype and device."""
    for a, b, c in coefficients:
        gram = x_NRC @ x_NRC.mT
        x_NRC = torch.baddbmm(x_NRC, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x_NRC, beta=a)
    return x_NRC


_CUBIC = ((1.5, -0.5, 0.0), (1.875, -1.25, 0.375))


def _agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare with float64, on sizes that no vector divides."""
    x = torch.randn(2, 70, 131, generator=torch.Generator().manual_seed(0)).to(dtype) / 20.0
    exact = apply_by_pytorch(x.double(), _CUBIC)
    found = apply_polynomials(form, x, _CUBIC).double()
    return bool((found - exact).abs().max() <= 0.02 * exact.abs().max())


def _trial(form: Form | None, dtype: torch.dtype) -> None:
    x = torch.ones(2, 256, 256, dtype=dtype) / 256.0
    if form is None:
        apply_by_pytorch(x, _CUBIC)
    else:
        apply_polynomials(form, x, _CUBIC)


KERNELS = (Kernel(_NAME, torch.bfloat16, _agrees, _trial),)
