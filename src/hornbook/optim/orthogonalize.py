"""Orthogonalization of matrices by polynomials, many matrices at once.

::

    G = U S Vᵀ   ->   U p(S) Vᵀ ≈ U Vᵀ          p: four or five odd polynomials of degree 5 in turn

No singular value decomposition is needed: ``a X + b (X Xᵀ) X + c (X Xᵀ)² X`` applies the polynomial
``a s + b s³ + c s⁵`` to each singular value of X. Matrices of equal shape are multiplied as one batch.

In fp32, the polynomials of an oblong matrix are multiplied as functions of its smaller Gram matrix, which takes 0.57 of
the time at an aspect ratio of 4. In bf16, this form is unstable.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, Literal

import torch
from torch import Tensor

from hornbook.ops.native.kernels import form_of
from hornbook.ops.native.orthogonalize import Coefficients, apply_by_pytorch, apply_polynomials

Polynomials = Literal["polar_express", "polar_express_4", "newton_schulz"]

_COEFFICIENTS: Final[dict[Polynomials, Coefficients]] = {
    "polar_express": (
        (8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
    ),
    "polar_express_4": (
        (8.102503905805897, -22.778756917699027, 16.407580853676237),
        (3.8807960968285466, -2.8382289705177453, 0.5324178074244132),
        (3.1532188545033737, -2.31788171420553, 0.47449053895994614),
        (2.196479957239396, -1.5737598128740278, 0.4085849917550588),
    ),
    "newton_schulz": ((3.4445, -4.7750, 2.0315),) * 5,
}
"""The coefficients a, b and c of each polynomial, from Amsel et al. 2025 (arXiv 2505.16932) and Jordan et al. 2024.

Those of ``polar_express_4`` are by the paper's algorithm 1 for four polynomials and a smallest singular value of 0.005,
with a cushion of 0.02 and a safety factor of 1.01.
"""
_MARGINS: Final[dict[Polynomials, float]] = {"polar_express": 1.01, "polar_express_4": 1.01, "newton_schulz": 1.0}
"""Factor of the norm that divides a matrix: Polar Express diverges where rounding lifts a singular value above 1."""
_SMALLEST_NORM: Final = 1e-7
_OBLONG: Final = 1.5
"""Aspect ratio from which polynomials of the Gram matrix take less time."""


def orthogonalize(matrices: Sequence[Tensor], polynomials: Polynomials) -> list[Tensor]:
    """Return approximately ``U Vᵀ`` of each matrix ``U S Vᵀ``, as new tensors.

    Singular values of at least a thousandth of the Frobenius norm become 0.85 to 1.15 with ``polar_express``; those of
    at least a two-hundredth 0.89 to 1.09 with ``polar_express_4``; those of at least a hundredth 0.68 to 1.21 with
    ``newton_schulz``. Smaller ones remain smaller, and zero remains zero.

    Args:
        matrices: ``[..., rows, columns]`` each, in the floating dtype of the products.
        polynomials: a key of the table of coefficients.
    """
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, matrix in enumerate(matrices):
        groups[*matrix.shape[-2:], matrix.dtype, matrix.device].append(number)
    results = list(matrices)
    for numbers in groups.values():
        batch = [matrices[number].reshape(-1, *matrices[number].shape[-2:]) for number in numbers]
        found = torch.split(_orthogonalize_batch(torch.cat(batch), polynomials), [len(part) for part in batch])
        for number, result in zip(numbers, found, strict=True):
            results[number] = result.view(matrices[number].shape)
    return results


def _orthogonalize_batch(matrices_NRC: Tensor, polynomials: Polynomials) -> Tensor:
    x_NRC, coefficients = matrices_NRC, _COEFFICIENTS[polynomials]
    is_tall = x_NRC.shape[-2] > x_NRC.shape[-1]
    if is_tall:
        x_NRC = x_NRC.mT
    norms = torch.linalg.matrix_norm(x_NRC, keepdim=True)
    x_NRC = x_NRC / (norms * _MARGINS[polynomials]).clamp(min=_SMALLEST_NORM)
    is_oblong = x_NRC.shape[-1] >= _OBLONG * x_NRC.shape[-2]
    compose = _by_gram_matrix if is_oblong and x_NRC.dtype == torch.float32 else _directly
    result = compose(x_NRC, coefficients)
    return result.mT.contiguous() if is_tall else result


def _directly(x_NRC: Tensor, coefficients: Coefficients) -> Tensor:
    form = form_of("orthogonalize", x_NRC)
    if form is None:
        return apply_by_pytorch(x_NRC, coefficients)
    return apply_polynomials(form, x_NRC.contiguous(), coefficients)


def _by_gram_matrix(x_NRC: Tensor, coefficients: Coefficients) -> Tensor:
    """Return the composition as ``Q X``, where Q is a polynomial of the Gram matrix G of X.

    A polynomial maps Q to ``(a + b G + c G²) Q`` and G to ``(a + b G + c G²)² G``; all of them commute.
    """
    gram = x_NRC @ x_NRC.mT
    factor = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device).expand_as(gram)
    for number, (a, b, c) in enumerate(coefficients):
        change = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor = torch.baddbmm(factor, factor, change, beta=a)
        if number + 1 < len(coefficients):
            for _ in range(2):
                gram = torch.baddbmm(gram, gram, change, beta=a)
    return factor @ x_NRC
