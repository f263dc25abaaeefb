"""Optimizer updates as functions on lists of slots: (parameter, gradient, named state).

::

    slots = [Slot(parameter, gradient, {"exp_avg": m, "exp_avg_sq": v}, role="matrix"), ...]
    adamw(slots, config, learning_rate=1e-3, count=7)        # the seventh update, in place

An update can process all parameters at once or block by block, with the state stored anywhere, so phased execution,
sparsity and sharding use the same optimizers. The number of the update is an argument rather than a state, which could
become inconsistent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial, singledispatch
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim.sgd import sgd as torch_sgd

from hornbook.config.description import Description
from hornbook.config.optimizers import (
    AdamConfig,
    AdamWConfig,
    LambConfig,
    MomentsConfig,
    MomentumConfig,
    MuonConfig,
    OptimizerConfig,
    SGDConfig,
    Shape,
    read_scales,
)
from hornbook.errors import UserError
from hornbook.optim.adam import adam, adam_directions, adamw
from hornbook.optim.muon import muon
from hornbook.optim.slots import Holders, Slot, by_group, norms_of
from hornbook.wording import first_few


@dataclass(frozen=True, kw_only=True)
class Update:
    """An optimizer: its state tensors, and the function ``(slots, learning_rate, count)``."""

    states: Callable[[str, Shape], Mapping[str, Shape]]
    """Returns the shapes of a parameter's state tensors: ``states`` of the configuration."""
    apply: Callable[[Sequence[Slot], float, int], None]
    """Updates slots in place, given the learning rate and the number of the update, from 1."""
    clips: bool = False
    """Whether ``apply`` multiplies gradients by ``Slot.clip``."""
    writes_copies: bool = False
    """Whether ``apply`` may write each ``Slot.copy``; otherwise, there is none."""
    assembles: bool = False
    """Whether ``apply`` assembles parameters that are split over ranks; a state may then lack a dimension that is."""


class _Move(NamedTuple):
    weights: Tensor
    direction: Tensor
    rate_scale: float
    holders: Holders | None


def lamb(slots: Sequence[Slot], config: LambConfig, *, learning_rate: float, count: int) -> None:
    """Update ``slots`` in place by LAMB (You et al. 2020): Adam's direction, scaled by the norm of each weight tensor.

    ::

        u = m̂ / (√v̂ + ε) + decay · w          decay only for matrices
        w -= lr · ‖w‖/‖u‖ · u                  trust ratio of each tensor; 1 if a norm is 0, and for biases

    Stacked query, key and value have separate ratios. Biases and norms are treated as in optimum-graphcore and the
    latest TensorFlow BERT; ``exempt_vectors`` false applies decay and ratio to every tensor, as in the paper and the
    first BERT. NVLAMB's pre-normalization is clipping to a global norm of 1, the default of ``clip_norm``.

    Adam's fused kernel computes moments and directions; four lighter passes follow, for decay, two norms and the step.
    Nothing synchronizes with the device. The directions temporarily take as much memory as the parameters.

    Args:
        slots: fp32 tensors with states ``exp_avg`` and ``exp_avg_sq``.
        config: betas, epsilon, decay and options of the trust ratio.
        learning_rate: of this update.
        count: t, the number of this update, from 1.
    """
    if not slots:
        return
    updates = adam_directions(slots, config, count)
    decayed = [
        (update, slot.parameter)
        for slot, update in zip(slots, updates, strict=True)
        if slot.decay or not (config.exempt_vectors or slot.is_exempt)
    ]
    if decayed and config.weight_decay > 0.0:
        torch._foreach_add_([u for u, _ in decayed], [w for _, w in decayed], alpha=-config.weight_decay)
    scaled, plain = list[_Move](), list[_Move]()
    for slot, direction in zip(slots, updates, strict=True):
        is_plain = slot.role == "bias" and config.exempt_vectors
        num_parts = slot.num_parts if config.split_qkv and not is_plain else 1
        pairs = [(slot.parameter, direction)]
        if num_parts > 1:
            pairs = [*zip(slot.parameter.chunk(num_parts), direction.chunk(num_parts), strict=True)]
        moves = [_Move(weights, move, slot.rate_scale, slot.holders) for weights, move in pairs]
        (plain if is_plain else scaled).extend(moves)
    if plain:
        steps = [move.direction if move.rate_scale == 1.0 else move.direction * move.rate_scale for move in plain]
        torch._foreach_add_([move.weights for move in plain], steps, alpha=learning_rate)
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
        weights: whole tensors, or this rank's parts.
        directions: of the same shapes.
        cap: upper limit of the norm of weights; None for no limit.
        holders: of the parts.
    """
    weight_norms, direction_norms = norms_of(weights, holders), norms_of(directions, holders)
    if cap is not None:
        weight_norms = weight_norms.clamp(max=cap)
    both = (weight_norms > 0.0) & (direction_norms > 0.0)
    return torch.where(both, weight_norms / direction_norms, 1.0)


def sgd(slots: Sequence[Slot], config: SGDConfig, *, learning_rate: float, count: int = 1) -> None:
    """Update ``slots`` in place by gradient descent: ``g += decay · w``, then ``w -= lr · g``."""
    _descend(slots, config.weight_decay, learning_rate)


def momentum(slots: Sequence[Slot], config: MomentumConfig, *, learning_rate: float, count: int = 1) -> None:
    """Update ``slots`` in place by gradient descent with momentum; b is the state ``momentum``, initially zero.

    ::

        g += decay · w;   b = μ b + g
        w -= lr · b                 heavy ball
        w -= lr · (g + μ b)         Nesterov, as in Sutskever et al. 2013 and TensorFlow
    """
    _descend(slots, config.weight_decay, learning_rate, config.momentum, nesterov=config.nesterov)


def _descend(
    slots: Sequence[Slot], weight_decay: float, learning_rate: float, factor: float = 0.0, *, nesterov: bool = False
) -> None:
    for decay, scale, group in by_group(slots):
        torch_sgd(
            [slot.parameter for slot in group],
            [slot.gradient for slot in group],
            [slot.state.get("momentum") for slot in group],
            fused=True,
            weight_decay=weight_decay if decay else 0.0,
            momentum=factor,
            lr=learning_rate * scale,
            dampening=0.0,
            nesterov=nesterov,
            maximize=False,
        )


UPDATES: dict[type[OptimizerConfig], Callable[..., None]] = {
    AdamWConfig: adamw,
    AdamConfig: adam,
    LambConfig: lamb,
    SGDConfig: sgd,
    MomentumConfig: momentum,
    MuonConfig: muon,
}
"""The function ``(slots, config, *, learning_rate, count)`` of each optimizer."""


@singledispatch
def build_update(config: object) -> Update:
    """Return the update for a recipe's ``[optimizer]`` section; ``build_update.register`` adds one.

    Raises:
        UserError: nothing is registered for this dataclass.
    """
    name = type(config).__name__
    raise UserError(f"there is no optimizer for {name}: register a function for it with build_update.register")


def _update(config: OptimizerConfig, rule: Callable[..., None]) -> Update:
    return Update(
        states=config.states,
        apply=lambda slots, rate, count: rule(slots, config, learning_rate=rate, count=count),
        clips=isinstance(config, MomentsConfig),
        writes_copies=isinstance(config, AdamWConfig | AdamConfig),
        assembles=isinstance(config, MuonConfig),
    )


for _config, _rule in UPDATES.items():
    build_update.register(_config, partial(_update, rule=_rule))


def in_groups(update: Update, config: object, names: Sequence[str]) -> Update:
    """Return ``update`` with the parameter groups of a recipe's ``[optimizer]`` section.

    ::

        no_decay = ["*.positions"]                  learning_rate_scale = ["embedding.*=0.1", "blocks.0.*=0.5"]

    Patterns are shell patterns: ``*`` matches any characters including dots, ``?`` one, ``[0-3]`` one of a set.

    Args:
        update: gets slots with ``is_exempt`` and ``rate_scale`` set.
        config: may have ``no_decay`` and ``learning_rate_scale``.
        names: of all parameters of the model.

    Raises:
        UserError: a pattern matches no name.
    """
    exempt: Sequence[str] = getattr(config, "no_decay", ())
    scales = read_scales(getattr(config, "learning_rate_scale", ()))
    unmatched = [
        f"optimizer.{option}: {pattern!r} matches no parameter"
        for option, patterns in (("no_decay", exempt), ("learning_rate_scale", scales))
        for pattern in patterns
        if not any(fnmatchcase(name, pattern) for name in names)
    ]
    if unmatched:
        examples = [*names[:1], *[name for name in names if name.endswith("qkv.bias")][:1], *names[-1:]]
        raise UserError(
            f"{'; '.join(first_few(unmatched))}; names of parameters are, for example, {', '.join(examples)}: "
            "correct or remove the pattern"
        )
    if not exempt and not scales:
        return update

    def grouped(slot: Slot) -> Slot:
        scale = next((scale for pattern, scale in scales.items() if fnmatchcase(slot.name, pattern)), 1.0)
        is_exempt = any(fnmatchcase(slot.name, pattern) for pattern in exempt)
        return replace(slot, is_exempt=is_exempt, rate_scale=slot.rate_scale * scale)

    return replace(update, apply=lambda slots, rate, count: update.apply([*map(grouped, slots)], rate, count))


def with_heads(update: Update, model: Description | None) -> Update:
    """Return ``update`` with the size of a head in the slots of query, key and value.

    Raises:
        UserError: the model has no description, which names them.
    """
    if model is None:
        raise UserError("optimizer.per_head needs a model with a description: remove it")
    sizes = {layer.name: part.head_size for part in model.block.attentions for layer in part.inputs}

    def of_heads(slot: Slot) -> Slot:
        name, _, kind = slot.name.split(".", 2)[-1].rpartition(".")
        return replace(slot, head_size=sizes.get(name) if kind in ("weight", "values") else None)

    return replace(update, apply=lambda slots, rate, count: update.apply([*map(of_heads, slots)], rate, count))
