"""Optimizer updates as functions on lists of slots: (parameter, gradient, named state).

::

    slots = [Slot(parameter, gradient, {"exp_avg": m, "exp_avg_sq": v}, role="matrix"), ...]
    adamw(slots, config, learning_rate=1e-3, count=7)        # the seventh update, in place

An update can process all parameters at once or block by block, with the state stored anywhere, so phased execution,
sparsity and sharding use the same optimizers. The number of the update is an argument rather than a state, which could
become inconsistent.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial, singledispatch
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim.adam import adam as torch_adam
from torch.optim.sgd import sgd as torch_sgd

from hornbook.config.optimizers import (
    AdamConfig,
    AdamWConfig,
    LambConfig,
    MomentsConfig,
    MomentumConfig,
    SGDConfig,
    read_scales,
)
from hornbook.errors import UserError
from hornbook.ops.native.adamw import Numbers, form_for
from hornbook.ops.native.adamw import adamw as native_adamw
from hornbook.ops.native.kernels import FORMS
from hornbook.optim.slots import Holders, Slot, by_group, norms_of
from hornbook.wording import first_few

STATE_NAMES = MomentsConfig.state_names


@dataclass(frozen=True, kw_only=True)
class Update:
    """An optimizer: the names of its state tensors, and the function ``(slots, learning_rate, count)``."""

    state_names: tuple[str, ...]
    """State tensors of every parameter."""
    apply: Callable[[Sequence[Slot], float, int], None]
    """Updates slots in place, given the learning rate and the number of the update, from 1."""
    clips: bool = False
    """Whether ``apply`` multiplies gradients by ``Slot.clip``."""
    further_names: Callable[[str, Tensor], tuple[str, ...]] = lambda name, parameter: ()
    """Returns the additional state tensors of a parameter, given its name and a tensor of its shape."""


def adamw(
    slots: Sequence[Slot], config: MomentsConfig, *, learning_rate: float, count: int, decoupled: bool = True
) -> None:
    """Update ``slots`` in place by AdamW (Loshchilov & Hutter 2019, algorithm 2): Adam after ``w -= lr · decay · w``.

    ::

        m = β₁ m + (1-β₁) g;   v = β₂ v + (1-β₂) g²
        m̂ = m / (1-β₁ᵗ);       v̂ = v / (1-β₂ᵗ)             without bias correction: m̂ = m, v̂ = v
        w -= lr · m̂ / (√v̂ + ε)

    ``epsilon_before_correction`` uses the form at the end of section 2 of Kingma & Ba, as TensorFlow does:
    ``w -= lr · √(1-β₂ᵗ) / (1-β₁ᵗ) · m / (√v + ε)``, which equals the above with ``ε / √(1-β₂ᵗ)`` instead of ε.

    PyTorch's fused kernel or a native one computes the update in one pass.

    Args:
        slots: fp32 tensors with states ``exp_avg`` and ``exp_avg_sq``.
        config: betas, epsilon and decay; slots with ``decay`` false are not decayed.
        learning_rate: of this update.
        count: t, the number of this update, from 1.
        decoupled: False adds the decay to the gradient, as ``adam`` does.
    """
    epsilon = config.epsilon
    if config.epsilon_before_correction and config.bias_correction:
        epsilon /= math.sqrt(1.0 - config.beta2**count)
    t = count if config.bias_correction else math.inf  # after infinitely many updates, 1 - βᵗ is 1
    young = [slot for slot in slots if _counts_ages(config) and slot.grown_at is not None and slot.grown_at.any()]
    for slot in young:
        _of_ages(slot, config, learning_rate=learning_rate, count=count, decoupled=decoupled)
    for decay, scale, group in by_group([slot for slot in slots if slot not in young] if young else slots):
        weight_decay = config.weight_decay if decay else 0.0
        numbers = Numbers(learning_rate * scale, weight_decay, config.beta1, config.beta2, epsilon, t, decoupled)
        weights, gradients = [slot.parameter for slot in group], [slot.gradient for slot in group]
        means, squares = ([slot.state[name] for slot in group] for name in STATE_NAMES)
        if FORMS and (form := form_for([*weights, *gradients, *means, *squares])) is not None:
            for slot, mean, square in zip(group, means, squares, strict=True):
                native_adamw(form, slot.parameter, slot.gradient, mean, square, numbers, slot.clip)
            continue
        if any(slot.clip != 1.0 for slot in group):
            torch._foreach_mul_(gradients, [slot.clip for slot in group])
        torch_adam(
            weights,
            gradients,
            means,
            squares,
            [],
            [torch.full((), float(t - 1), device=weight.device) for weight in weights],
            fused=True,
            amsgrad=False,
            beta1=config.beta1,
            beta2=config.beta2,
            lr=numbers.learning_rate,
            weight_decay=weight_decay,
            eps=epsilon,
            maximize=False,
            decoupled_weight_decay=decoupled,
        )


def _counts_ages(config: MomentsConfig) -> bool:
    """Return whether the bias correction of grown blocks counts from the update after which they grew.

    With the count of the run, the moments of a new block, which start at zero, are not corrected: late in a run, its
    first step is ``lr · (1 - β₁) / √(1 - β₂)``, 3.2 lr for β₂ = 0.999 and 0.45 lr for 0.95; with the count of its age
    it is ``lr``. The smaller of the two is taken, since large first steps disturb what has been learned, more so as the
    learning rate of blocks is several times that of other weights (docs/sparse.md).
    """
    return config.bias_correction and (1.0 - config.beta1) ** 2 > 1.0 - config.beta2


def _of_ages(slot: Slot, config: MomentsConfig, *, learning_rate: float, count: int, decoupled: bool) -> None:
    """Update blocks of different ages in place, with t counted from the update after which each block grew."""
    assert slot.grown_at is not None, "only blocks have ages"
    age = (count - slot.grown_at)[..., None, None].double()
    first, second = ((1.0 - beta**age).to(slot.parameter.dtype) for beta in (config.beta1, config.beta2))
    weight, gradient, rate = slot.parameter, slot.gradient * slot.clip, learning_rate * slot.rate_scale
    decay = config.weight_decay if slot.decay else 0.0
    if decoupled:
        weight.mul_(1.0 - rate * decay)
    elif decay:
        gradient = gradient.add(weight, alpha=decay)
    mean, square = slot.state["exp_avg"], slot.state["exp_avg_sq"]
    mean.lerp_(gradient, 1.0 - config.beta1)
    square.mul_(config.beta2).addcmul_(gradient, gradient, value=1.0 - config.beta2)
    epsilon = config.epsilon / second.sqrt() if config.epsilon_before_correction else config.epsilon
    weight.addcdiv_(mean / first, (square / second).sqrt_().add_(epsilon), value=-rate)


def adam(slots: Sequence[Slot], config: MomentsConfig, *, learning_rate: float, count: int) -> None:
    """Update ``slots`` in place by Adam (Kingma & Ba 2015), after ``g += decay · w``; arguments as for ``adamw``."""
    adamw(slots, config, learning_rate=learning_rate, count=count, decoupled=False)


def adam_directions(slots: Sequence[Slot], config: MomentsConfig, count: int) -> list[Tensor]:
    """Update the moments of ``slots`` in place and return ``-m̂ / (√v̂ + ε)``, new tensors of the parameters' shapes.

    They are the result of the fused Adam update of zeros with a learning rate of 1 and no decay.
    """
    zeros = [
        replace(slot, parameter=torch.zeros_like(slot.parameter), is_exempt=True, rate_scale=1.0) for slot in slots
    ]
    adam(zeros, config, learning_rate=1.0, count=count)
    return [slot.parameter for slot in zeros]


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
    _add_decay(slots, updates, config)
    scaled, plain = _split_moves(slots, updates, config)
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


def _add_decay(slots: Sequence[Slot], directions: list[Tensor], config: LambConfig) -> None:
    """Add the weight decay to the directions."""
    decayed = [
        (direction, slot.parameter)
        for slot, direction in zip(slots, directions, strict=True)
        if slot.decay or not (config.exempt_vectors or slot.is_exempt)
    ]
    if decayed and config.weight_decay > 0.0:
        torch._foreach_add_([u for u, _ in decayed], [w for _, w in decayed], alpha=-config.weight_decay)


def _split_moves(
    slots: Sequence[Slot], directions: list[Tensor], config: LambConfig
) -> tuple[list[_Move], list[_Move]]:
    """Return the moves with a trust ratio, and those without."""
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


UPDATES: dict[type, tuple[Callable[..., None], tuple[str, ...]]] = {
    AdamWConfig: (adamw, AdamWConfig.state_names),
    AdamConfig: (adam, AdamConfig.state_names),
    LambConfig: (lamb, LambConfig.state_names),
    SGDConfig: (sgd, SGDConfig.state_names),
    MomentumConfig: (momentum, MomentumConfig.state_names),
}
"""The function ``(slots, config, *, learning_rate, count)`` of each optimizer, and the names of its state tensors."""


@singledispatch
def build_update(config: object) -> Update:
    """Return the update for a recipe's ``[optimizer]`` section; ``build_update.register`` adds one.

    Raises:
        UserError: nothing is registered for this dataclass.
    """
    name = type(config).__name__
    raise UserError(f"there is no optimizer for {name}: register a function for it with build_update.register")


def _update(config: object, rule: Callable[..., None], state_names: tuple[str, ...]) -> Update:
    return Update(
        state_names=state_names,
        apply=lambda slots, rate, count: rule(slots, config, learning_rate=rate, count=count),
        clips=state_names == STATE_NAMES,
    )


for _config, (_rule, _names) in UPDATES.items():
    build_update.register(_config, partial(_update, rule=_rule, state_names=_names))


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
