"""Optimizer updates as functions on lists of slots: (parameter, gradient, named state).

::

    slots = [Slot(parameter, gradient, {"exp_avg": m, "exp_avg_sq": v}, decay=True), ...]
    adamw(slots, config, learning_rate=1e-3, count=7)        # the seventh update, in place

A function of lists can be called with all parameters at once or block by block, with the state wherever it lives, so
phased execution, sparsity and sharding need no other optimizer. The number of the update is an argument, not a state
that could fall out of step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor
from torch.optim.adamw import adamw as torch_adamw

from hornbook.config import AdamWConfig


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One parameter with what its update needs; all tensors have the parameter's shape."""

    parameter: Tensor
    gradient: Tensor
    state: dict[str, Tensor]
    decay: bool


@dataclass(frozen=True, kw_only=True)
class Update:
    """An optimizer: the names of its state tensors, and the function ``(slots, learning_rate, count)``."""

    state_names: tuple[str, ...]
    apply: Callable[[Sequence[Slot], float, int], None]


@singledispatch
def build_update(config: object) -> Update:
    """Return the update rule of a recipe's ``[optimizer]`` section (``build_update.register`` adds one)."""
    raise TypeError(f"no optimizer is registered for {type(config).__name__}")


@build_update.register
def _(config: AdamWConfig) -> Update:
    return Update(
        state_names=("exp_avg", "exp_avg_sq"),
        apply=lambda slots, learning_rate, count: adamw(slots, config, learning_rate=learning_rate, count=count),
    )


def adamw(slots: Sequence[Slot], config: AdamWConfig, *, learning_rate: float, count: int) -> None:
    """AdamW with bias correction and decoupled decay (Loshchilov & Hutter 2019, algorithm 2), one fused pass, in place.

    ::

        w -= lr · decay · w;   m = β₁ m + (1-β₁) g;   v = β₂ v + (1-β₂) g²
        w -= lr · (m / (1-β₁ᵗ)) / (√(v / (1-β₂ᵗ)) + ε)

    Args:
        slots: fp32 tensors with states ``exp_avg`` and ``exp_avg_sq``.
        config: betas, epsilon and decay; slots with ``decay=False`` are not decayed.
        learning_rate: of this update.
        count: t, the number of this update, from 1.
    """
    for decay in (True, False):
        group = [slot for slot in slots if slot.decay is decay]
        if not group:
            continue
        torch_adamw(
            [slot.parameter for slot in group],
            [slot.gradient for slot in group],
            [slot.state["exp_avg"] for slot in group],
            [slot.state["exp_avg_sq"] for slot in group],
            [],
            [torch.full((), float(count - 1), device=slot.parameter.device) for slot in group],
            fused=True,
            amsgrad=False,
            beta1=config.beta1,
            beta2=config.beta2,
            lr=learning_rate,
            weight_decay=config.weight_decay if decay else 0.0,
            eps=config.epsilon,
            maximize=False,
        )


def clip_by_global_norm(gradients: Sequence[Tensor], norm: float, limit: float) -> None:
    """Scale ``gradients`` in place by ``limit / norm`` if their ``norm`` is above ``limit`` (Pascanu et al. 2013)."""
    if norm > limit:
        torch._foreach_mul_(list(gradients), limit / norm)
