"""Optimizer updates as functions on lists of slots: (parameter, gradient, named state).

::

    slots = [Slot(parameter, gradient, {"exp_avg": m, "exp_avg_sq": v}, role="matrix"), ...]
    adamw(slots, config, learning_rate=1e-3, count=7)        # the seventh update, in place

A function of lists can be called with all parameters at once or block by block, with the state wherever it lives, so
phased execution, sparsity and sharding need no other optimizer. The number of the update is an argument, not a state
that could fall out of step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch

from hornbook.config.optimizers import AdamConfig, AdamWConfig, LambConfig, MomentumConfig, SGDConfig
from hornbook.optim import adam, lamb, sgd
from hornbook.optim.slots import Slot


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
        state_names=adam.STATE_NAMES,
        apply=lambda slots, rate, count: adam.adamw(slots, config, learning_rate=rate, count=count),
    )


@build_update.register
def _(config: AdamConfig) -> Update:
    return Update(
        state_names=adam.STATE_NAMES,
        apply=lambda slots, rate, count: adam.adam(slots, config, learning_rate=rate, count=count),
    )


@build_update.register
def _(config: LambConfig) -> Update:
    return Update(
        state_names=adam.STATE_NAMES,
        apply=lambda slots, rate, count: lamb.lamb(slots, config, learning_rate=rate, count=count),
    )


@build_update.register
def _(config: SGDConfig) -> Update:
    return Update(state_names=(), apply=lambda slots, rate, _: sgd.sgd(slots, config, learning_rate=rate))


@build_update.register
def _(config: MomentumConfig) -> Update:
    return Update(
        state_names=("momentum",), apply=lambda slots, rate, _: sgd.momentum(slots, config, learning_rate=rate)
    )
