"""Muon: momentum, orthogonalized, for the dense matrices of blocks; AdamW for all other parameters.

::

    m = μ m + (1-μ) g;   d = (1-μ) g + μ m          Nesterov's; otherwise d = m
    w -= lr · decay · w
    w -= lr · factor(rows, columns) · U Vᵀ          of d = U S Vᵀ, for query, key and value separately

The rule is Jordan et al.'s (2024), with decoupled decay and, as an option, the factor of Liu et al. 2025 (arXiv
2502.16982), for which rates of AdamW serve.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hornbook.config.optimizers import MuonConfig, MuonKind
from hornbook.optim.adam import adamw
from hornbook.optim.orthogonalize import orthogonalize
from hornbook.optim.slots import Slot
from hornbook.parallel.device import compute_dtype
from hornbook.parallel.whole_tensors import Assembly


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
        by_kind[config.kind_of(slot.name, slot.parameter.shape)].append(slot)
    _update_hidden(by_kind["hidden"], config, learning_rate)
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


def _update_hidden(slots: Sequence[Slot], config: MuonConfig, learning_rate: float) -> None:
    for slot, move in zip(slots, _moves(slots, config) if slots else (), strict=True):
        rate, weight = learning_rate * slot.rate_scale, slot.parameter
        _decay(weight, move, rate * config.weight_decay if slot.decay else 0.0, is_cautious=config.cautious_decay)
        weight.sub_(move, alpha=rate * _factor(slot, config))


def _moves(slots: Sequence[Slot], config: MuonConfig) -> list[Tensor]:
    """Update the slots' states in place, and return the orthogonal matrices, fp32, of the parameters' shapes.

    Of several ranks, each orthogonalizes some of the matrices for all.
    """
    dtype = compute_dtype(config.products, slots[0].parameter.device)
    directions = [_direction(slot, config).to(dtype) for slot in slots]
    row_squares = [slot.state["row_square"] for slot in slots] if config.row_moments else []
    heads = [slot.head_size for slot in slots]
    if (parts := slots[0].parts) is None:
        return _orthogonal(directions, row_squares, heads, config)
    boxes = [parts.boxes[slot.name] for slot in slots]
    matrices = Assembly(parts.ranks, boxes)
    columns = Assembly(parts.ranks, [[box.first_column() for box in ranks] for ranks in boxes], matrices.owners)
    own_squares = columns.assemble(row_squares) if row_squares else []
    own_heads = [size for size, owner in zip(heads, matrices.owners, strict=True) if owner == parts.ranks.rank]
    own = _orthogonal(matrices.assemble(directions), own_squares, own_heads, config)
    if row_squares:
        torch._foreach_copy_(row_squares, columns.hand_back(own_squares, row_squares[0]))
    return matrices.hand_back(own, slots[0].parameter)


def _orthogonal(
    directions: Sequence[Tensor], row_squares: Sequence[Tensor], heads: Sequence[int | None], config: MuonConfig
) -> list[Tensor]:
    matrices = [_by_heads(*pair) for pair in zip(directions, heads, strict=True)]
    moves = [move.float() for move in orthogonalize(matrices, config.polynomials)]
    if row_squares:
        squares = [_by_heads(*pair) for pair in zip(row_squares, heads, strict=True)]
        moves = [_even_rows(move, square, config.row_beta) for move, square in zip(moves, squares, strict=True)]
    return [move.view(direction.shape) for move, direction in zip(moves, directions, strict=True)]


def _by_heads(matrix: Tensor, head_size: int | None) -> Tensor:
    """Return a view ``[..., heads, head_size, columns]`` of ``[..., rows, columns]``; without heads the matrix."""
    return matrix if head_size is None else matrix.view(*matrix.shape[:-2], -1, head_size, matrix.shape[-1])


def _direction(slot: Slot, config: MuonConfig) -> Tensor:
    """Update the momentum of ``slot`` in place and return what is to be orthogonalized."""
    if slot.clip != 1.0:
        slot.gradient.mul_(slot.clip)
    momentum = slot.state["momentum"].lerp_(slot.gradient, 1.0 - config.momentum)
    return slot.gradient.lerp(momentum, config.momentum) if config.nesterov else momentum


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


def _decay(weight: Tensor, move: Tensor, share: float, *, is_cautious: bool) -> None:
    """Decay ``weight`` in place; cautiously: only where the move and the decay have the same sign."""
    if share and is_cautious:
        weight.sub_(weight * (weight * move > 0), alpha=share)
    elif share:
        weight.mul_(1.0 - share)


def _factor(slot: Slot, config: MuonConfig) -> float:
    shape = slot.parameter.shape if slot.parts is None else slot.parts.shape_of(slot.name)
    rows, columns = slot.head_size or shape[-2], shape[-1]
    return 0.2 * math.sqrt(max(rows, columns)) if config.scale == "rms" else math.sqrt(max(1.0, rows / columns))
