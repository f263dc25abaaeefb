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

import torch
from torch import Tensor

from hornbook.config.optimizers import LambConfig
from hornbook.optim.adam import adam_directions
from hornbook.optim.clipping import norms_of
from hornbook.optim.slots import Slot

_Pair = tuple[Tensor, Tensor]


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
    directions = adam_directions(slots, config, count)
    _decay(slots, directions, config)
    scaled, plain = _pairs(slots, directions, config)
    if plain:
        torch._foreach_add_([w for w, _ in plain], [u for _, u in plain], alpha=learning_rate)
    if scaled:
        weights, updates = [w for w, _ in scaled], [u for _, u in scaled]
        ratios = trust_ratios(weights, updates, config.weight_norm_cap)
        torch._foreach_addcmul_(weights, updates, list(ratios.unbind()), value=learning_rate)


def trust_ratios(weights: list[Tensor], directions: list[Tensor], cap: float | None) -> Tensor:
    """Return ``min(‖w‖, cap) / ‖u‖`` for each pair of fp32 tensors, 1 where either norm is 0: ``[len(weights)]``."""
    weight_norms, direction_norms = norms_of(weights), norms_of(directions)
    if cap is not None:
        weight_norms = weight_norms.clamp(max=cap)
    both = (weight_norms > 0.0) & (direction_norms > 0.0)
    return torch.where(both, weight_norms / direction_norms, 1.0)


def _decay(slots: Sequence[Slot], directions: list[Tensor], config: LambConfig) -> None:
    """Let directions lead towards zero, too."""
    decayed = [pair for pair in zip(slots, directions, strict=True) if pair[0].decay or not config.exempt_vectors]
    if decayed and config.weight_decay > 0.0:
        weights = [slot.parameter for slot, _ in decayed]
        torch._foreach_add_([direction for _, direction in decayed], weights, alpha=-config.weight_decay)


def _pairs(slots: Sequence[Slot], directions: list[Tensor], config: LambConfig) -> tuple[list[_Pair], list[_Pair]]:
    """Return what has a trust ratio of its own, as pairs of weights and direction, and what has none."""
    scaled: list[_Pair] = []
    plain: list[_Pair] = []
    for slot, direction in zip(slots, directions, strict=True):
        if slot.role == "bias" and config.exempt_vectors:
            plain.append((slot.parameter, direction))
        elif config.split_qkv:
            scaled += zip(slot.cut(slot.parameter), slot.cut(direction), strict=True)
        else:
            scaled.append((slot.parameter, direction))
    return scaled, plain
