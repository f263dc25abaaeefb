"""Muon: momentum, orthogonalized, for the dense matrices of blocks; AdamW for all other parameters.

::

    m = μ m + (1-μ) g;   d = (1-μ) g + μ m          Nesterov's; otherwise d = m
    w -= lr · decay · w
    w -= lr · factor(rows, columns) · U Vᵀ          of d = U S Vᵀ, for query, key and value separately

The rule is Jordan et al.'s (2024), with decoupled decay and, as an option, the factor of Liu et al. 2025 (arXiv
2502.16982), for which rates of AdamW serve. ``orthogonalize`` computes U Vᵀ by four or five odd polynomials of degree 5
in turn, ``U p(S) Vᵀ``, without a singular value decomposition: ``a X + b (X Xᵀ) X + c (X Xᵀ)² X`` applies the
polynomial ``a s + b s³ + c s⁵`` to each singular value s of X.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

import torch
from torch import Tensor

from hornbook.config.optimizers import MuonConfig, MuonKind
from hornbook.ops.native.kernels import form_of
from hornbook.ops.native.optimizers import Coefficients, apply_by_pytorch, apply_polynomials
from hornbook.optim.adam import adamw
from hornbook.optim.slots import Slot
from hornbook.parallel.device import compute_dtype
from hornbook.parallel.whole_tensors import Assembly

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


def muon(slots: Sequence[Slot], config: MuonConfig, *, learning_rate: float, count: int) -> None:
    """Update ``slots`` in place.

    Args:
        slots: fp32 tensors; dense matrices of blocks have the state ``momentum`` and, with ``row_moments``,
            ``row_square``; others have AdamW's.
        config: rates, momentum and options.
        learning_rate: of Muon in this update; AdamW's are in proportion.
        count: the number of this update, from 1.
    """
    by_kind: dict[MuonKind, list[Slot]] = {"hidden": [], "table": [], "head": [], "vector": []}
    for slot in slots:
        by_kind[config.kind_of(slot.name, slot.role)].append(slot)
    hidden = by_kind["hidden"]
    for slot, move in zip(hidden, _moves(hidden, config) if hidden else (), strict=True):
        weight, rate = slot.parameter, learning_rate * slot.rate_scale
        share = rate * config.weight_decay if slot.decay else 0.0
        if share and config.cautious_decay:  # only where it has the sign of the move
            weight.sub_(weight * (weight * move > 0), alpha=share)
        elif share:
            weight.mul_(1.0 - share)
        shape = weight.shape if slot.parts is None else slot.parts.shape_of(slot.name)
        rows, columns = slot.head_size or shape[-2], shape[-1]
        factor = 0.2 * math.sqrt(max(rows, columns)) if config.scale == "rms" else math.sqrt(max(1.0, rows / columns))
        weight.sub_(move, alpha=rate * factor)
    progress = learning_rate / config.learning_rate
    rates: dict[MuonKind, tuple[float, float | None, float | None]] = {
        "table": (config.table_learning_rate, config.table_beta1, config.table_beta2),
        "head": (config.head_learning_rate, config.head_beta1, config.head_beta2),
        "vector": (config.vector_learning_rate, None, None),
    }
    for kind, (rate, beta1, beta2) in rates.items():
        moments = replace(
            config,
            beta1=config.beta1 if beta1 is None else beta1,
            beta2=config.beta2 if beta2 is None else beta2,
        )
        adamw(by_kind[kind], moments, learning_rate=rate * progress, count=count)


def _moves(slots: Sequence[Slot], config: MuonConfig) -> list[Tensor]:
    """Update the slots' states in place, and return the orthogonal matrices, fp32, of the parameters' shapes.

    Of several ranks, each orthogonalizes some of the matrices for all; each head separately where slots have its size.
    """
    dtype, parts = compute_dtype(config.products, slots[0].parameter.device), slots[0].parts
    directions = []
    for slot in slots:
        if slot.clip != 1.0:
            slot.gradient.mul_(slot.clip)
        momentum = slot.state["momentum"].lerp_(slot.gradient, 1.0 - config.momentum)
        directions.append((slot.gradient.lerp(momentum, config.momentum) if config.nesterov else momentum).to(dtype))
    stored_squares = squares = [slot.state["row_square"] for slot in slots] if config.row_moments else []
    heads = [slot.head_size for slot in slots]
    if parts is not None:
        boxes = [parts.boxes[slot.name] for slot in slots]
        matrices = Assembly(parts.ranks, boxes)
        columns = Assembly(parts.ranks, [[box.first_column() for box in ranks] for ranks in boxes], matrices.owners)
        directions, squares = matrices.assemble(directions), columns.assemble(squares) if squares else []
        heads = [size for size, owner in zip(heads, matrices.owners, strict=True) if owner == parts.ranks.rank]
    shapes: list[Sequence[int]] = [
        direction.shape if size is None else (*direction.shape[:-2], -1, size, direction.shape[-1])
        for direction, size in zip(directions, heads, strict=True)
    ]
    found = orthogonalize([of.view(shape) for of, shape in zip(directions, shapes, strict=True)], config.polynomials)
    moves = [move.float() for move in found]
    if squares:
        rows = [square.view(*shape[:-1], 1) for square, shape in zip(squares, shapes, strict=True)]
        moves = [_even_rows(move, square, config.row_beta) for move, square in zip(moves, rows, strict=True)]
    moves = [move.view(direction.shape) for move, direction in zip(moves, directions, strict=True)]
    if parts is None:
        return moves
    if stored_squares:
        torch._foreach_copy_(stored_squares, columns.hand_back(squares, stored_squares[0]))
    return matrices.hand_back(moves, slots[0].parameter)


def _even_rows(move: Tensor, row_square: Tensor, beta: float) -> Tensor:
    """Return ``move`` with each row divided by its root mean square over time, and with the same norm.

    After NorMuon (Li et al. 2025, arXiv 2510.05491, algorithm 1), whose factor is that of ``scale = "rms"``. The mean
    squares, ``[..., rows, 1]``, are updated in place; no bias correction is needed, since the norm does not depend on
    their size.
    """
    row_square.lerp_(move.square().mean(-1, keepdim=True), 1.0 - beta)
    even = move / row_square.sqrt().clamp(min=1e-10)
    before, after = (torch.linalg.matrix_norm(tensor, keepdim=True) for tensor in (move, even))
    result: Tensor = even * (before / after.clamp(min=1e-10))
    return result


def orthogonalize(matrices: Sequence[Tensor], polynomials: Polynomials) -> list[Tensor]:
    """Return approximately ``U Vᵀ`` of each matrix ``U S Vᵀ``, as new tensors; equal shapes form one batch.

    Singular values of at least a thousandth of the Frobenius norm become 0.85 to 1.15 with ``polar_express``; those of
    at least a two-hundredth 0.89 to 1.09 with ``polar_express_4``; those of at least a hundredth 0.68 to 1.21 with
    ``newton_schulz``. Smaller ones remain smaller, and zero remains zero.

    Args:
        matrices: ``[..., rows, columns]`` each, in the floating dtype of the products.
        polynomials: a key of the table of coefficients.
    """
    coefficients = _COEFFICIENTS[polynomials]
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, matrix in enumerate(matrices):
        groups[*matrix.shape[-2:], matrix.dtype, matrix.device].append(number)
    results = list(matrices)
    for numbers in groups.values():
        batch = [matrices[number].reshape(-1, *matrices[number].shape[-2:]) for number in numbers]
        x_NRC = torch.cat(batch)
        is_tall = x_NRC.shape[-2] > x_NRC.shape[-1]
        if is_tall:
            x_NRC = x_NRC.mT
        norms = torch.linalg.matrix_norm(x_NRC, keepdim=True)
        x_NRC = x_NRC / (norms * _MARGINS[polynomials]).clamp(min=_SMALLEST_NORM)
        if (form := form_of("orthogonalize", x_NRC)) is not None:
            x_NRC = apply_polynomials(form, x_NRC.contiguous(), coefficients)
        else:
            x_NRC = apply_by_pytorch(x_NRC, coefficients)
        parts = torch.split(x_NRC.mT.contiguous() if is_tall else x_NRC, [len(part) for part in batch])
        for number, part in zip(numbers, parts, strict=True):
            results[number] = part.view(matrices[number].shape)
    return results
