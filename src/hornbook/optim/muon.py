"""Muon: momentum, orthogonalized, for the matrices of blocks; AdamW for all other parameters.

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
from itertools import groupby
from typing import Final, Literal

import torch
from torch import Tensor

from hornbook.config.optimizers import MuonConfig, MuonKind
from hornbook.ops.block_pattern import from_dense, to_dense
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
        slots: fp32 tensors; matrices of blocks have the state ``momentum`` and, with ``row_moments``, ``row_square``
            if they are dense; others have AdamW's.
        config: rates, momentum and options.
        learning_rate: of Muon in this update; AdamW's are in proportion.
        count: the number of this update, from 1.
    """
    by_kind: dict[MuonKind, list[Slot]] = {"hidden": [], "table": [], "head": [], "vector": []}
    for slot in slots:
        by_kind[config.kind_of(slot.name, slot.role)].append(slot)
    hidden = sorted(by_kind["hidden"], key=lambda slot: slot.pattern is not None)
    groups = (list(group) for _, group in groupby(hidden, lambda slot: slot.pattern is not None))
    moves = [move for group in groups for move in _moves(group, config)]
    for slot, move in zip(hidden, moves, strict=True):
        weight, rate = slot.parameter, learning_rate * slot.rate_scale
        share = rate * config.weight_decay if slot.decay else 0.0
        if share and config.cautious_decay:  # only where it has the sign of the move
            weight.sub_(weight * (weight * move > 0), alpha=share)
        elif share:
            weight.mul_(1.0 - share)
        rows, columns = slot.matrix_size
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

    Of several ranks, each orthogonalizes some of the matrices for all. The slots are all dense or all block-sparse.
    """
    dtype = compute_dtype(config.products, slots[0].parameter.device)
    directions = []
    for slot in slots:
        if slot.clip != 1.0:
            slot.gradient.mul_(slot.clip)
        momentum = slot.state["momentum"].lerp_(slot.gradient, 1.0 - config.momentum)
        directions.append((slot.gradient.lerp(momentum, config.momentum) if config.nesterov else momentum).to(dtype))
    has_rows = config.row_moments and slots[0].pattern is None
    row_squares = [slot.state["row_square"] for slot in slots] if has_rows else []
    if (parts := slots[0].parts) is None:
        return _orthogonal(slots, directions, row_squares, config)
    boxes = [parts.boxes[slot.name] for slot in slots]
    matrices = Assembly(parts.ranks, boxes)
    columns = Assembly(parts.ranks, [[box.first_column() for box in ranks] for ranks in boxes], matrices.owners)
    own_squares = columns.assemble(row_squares) if row_squares else []
    own_slots = [slot for slot, owner in zip(slots, matrices.owners, strict=True) if owner == parts.ranks.rank]
    own = _orthogonal(own_slots, matrices.assemble(directions), own_squares, config)
    if row_squares:
        torch._foreach_copy_(row_squares, columns.hand_back(own_squares, row_squares[0]))
    return matrices.hand_back(own, slots[0].parameter)


def _orthogonal(
    slots: Sequence[Slot], directions: Sequence[Tensor], row_squares: Sequence[Tensor], config: MuonConfig
) -> list[Tensor]:
    """Return the orthogonal matrices of the directions of whole parameters, each head's separately if slots have heads.

    Those of blocks are the blocks of the orthogonal matrix of their matrix.
    """
    wholes = [
        direction if slot.pattern is None else to_dense(direction.flatten(0, -3), slot.pattern)
        for slot, direction in zip(slots, directions, strict=True)
    ]
    matrices = [whole.reshape(-1, *slot.matrix_size) for slot, whole in zip(slots, wholes, strict=True)]
    moves = [move.float() for move in orthogonalize(matrices, config.polynomials)]
    if row_squares:
        squares = [square.view(*move.shape[:-1], 1) for square, move in zip(row_squares, moves, strict=True)]
        moves = [_even_rows(move, square, config.row_beta) for move, square in zip(moves, squares, strict=True)]
    moves = [move if slot.pattern is None else _blocks_of(move, slot) for slot, move in zip(slots, moves, strict=True)]
    return [move.view(direction.shape) for move, direction in zip(moves, directions, strict=True)]


def _blocks_of(move: Tensor, slot: Slot) -> Tensor:
    """Return the blocks ``[parts, n · b · b]`` of a layer's orthogonal matrices ``[parts · heads, rows, columns]``.

    The other blocks are lost, so these are scaled to the root mean square of a whole orthogonal matrix.
    """
    assert slot.pattern is not None
    size, columns = slot.parameter.shape[-1], move.shape[-1]
    blocks = from_dense(move.reshape(-1, columns), slot.pattern, size).view(slot.parameter.shape[:-3].numel(), -1)
    norm = math.sqrt(blocks.shape[1] / max(slot.matrix_size))
    scaled: Tensor = blocks * (norm / torch.linalg.vector_norm(blocks, dim=1, keepdim=True).clamp(min=_SMALLEST_NORM))
    return scaled


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
