"""LAMB: Adam's direction, with a step that is proportional to the weights it changes (You et al. 2020).

::

    u = m̂ / (√v̂ + ε) + decay · w          m̂, v̂ as in optim/adam; decay for matrices
    w -= lr · ‖w‖/‖u‖ · u                  the ratio tensor by tensor; 1 where a norm is 0, and for biases

Stacked query, key and value have a ratio each. Biases and norms are treated as optimum-graphcore and the last
TensorFlow BERT did; ``exempt_vectors`` false gives decay and ratio to every tensor, as the paper and the first one did.
NVLAMB's pre-normalization is clipping to a global norm of 1, which is the default of ``clip_norm``.

Moments and directions come from the fused pass of Adam; four lighter ones follow, for decay, two norms and the step.
The price is a copy of the parameters for a moment, which holds the directions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hornbook.config.optimizers import LambConfig
from hornbook.optim.adam import adam_directions
from hornbook.optim.slots import Holders, Slot, norms_of


class _Move(NamedTuple):
    weights: Tensor
    direction: Tensor
    rate_scale: float
    holders: Holders | None


def lamb(slots: Sequence[Slot], config: LambConfig, *, learning_rate: float, count: int) -> None:
    """Update ``slots`` in place, with nothing that waits for the device.

    Args:
        slots: fp32 tensors with states ``exp_avg`` and ``exp_avg_sq``.
        config: betas, epsilon, decay and what the trust ratio does.
        learning_rate: of this update.
        count: t, the number of this update, from 1.
    """
    if not slots:
        return
    updates = adam_directions(slots, config, count)
    _decay(slots, updates, config)
    scaled, plain = _moves(slots, updates, config)
    if plain:
        moves = [move.direction if move.rate_scale == 1.0 else move.direction * move.rate_scale for move in plain]
        torch._foreach_add_([move.weights for move in plain], moves, alpha=learning_rate)
    if scaled:
        weights, directions = [move.weights for move in scaled], [move.direction for move in scaled]
        holders = [move.holders for move in scaled]
        ratios = trust_ratios(weights, directions, config.weight_norm_cap, holders).unbind()
        scales = [move.rate_scale for move in scaled]
        factors = [ratio if scale == 1.0 else ratio * scale for ratio, scale in zip(ratios, scales, strict=True)]
        torch._foreach_addcmul_(weights, directions, factors, value=learning_rate)


def trust_ratios(
    weights: list[Tensor], directions: list[Tensor], cap: float | None, holders: Sequence[Holders | None] = ()
) -> Tensor:
    """Return ``min(‖w‖, cap) / ‖u‖`` for each pair of fp32 tensors, 1 where either norm is 0: ``[len(weights)]``.

    Args:
        weights: or the parts of them that this rank holds.
        directions: likewise.
        cap: largest norm of weights that counts; None for any.
        holders: of the parts.
    """
    weight_norms, direction_norms = norms_of(weights, holders), norms_of(directions, holders)
    if cap is not None:
        weight_norms = weight_norms.clamp(max=cap)
    both = (weight_norms > 0.0) & (direction_norms > 0.0)
    return torch.where(both, weight_norms / direction_norms, 1.0)


def _decay(slots: Sequence[Slot], directions: list[Tensor], config: LambConfig) -> None:
    """Add the weight decay to the directions."""
    decayed = [
        (direction, slot.parameter)
        for slot, direction in zip(slots, directions, strict=True)
        if slot.decay or not (config.exempt_vectors or slot.is_exempt)
    ]
    if decayed and config.weight_decay > 0.0:
        torch._foreach_add_([u for u, _ in decayed], [w for _, w in decayed], alpha=-config.weight_decay)


def _moves(slots: Sequence[Slot], directions: list[Tensor], config: LambConfig) -> tuple[list[_Move], list[_Move]]:
    """Return the tensors that have a trust ratio of their own, and those that have none."""
    scaled: list[_Move] = []
    plain: list[_Move] = []
    for slot, direction in zip(slots, directions, strict=True):
        if slot.role == "bias" and config.exempt_vectors:
            plain.append(_Move(slot.parameter, direction, slot.rate_scale, slot.holders))
        else:
            parts = slot.cut if config.split_qkv else lambda tensor: (tensor,)
            pairs = zip(parts(slot.parameter), parts(direction), strict=True)
            scaled += [_Move(weight, move, slot.rate_scale, slot.holders) for weight, move in pairs]
    return scaled, plain
