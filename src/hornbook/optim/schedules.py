"""Learning-rate schedules: pure functions of the number of the update.

    cosine, warmup_steps 4, num_steps 10, final_fraction 0.1

    step     0     1     2     3     4     5     6     7     8     9    (10)
    factor   0.25  0.5   0.75  1.0   1.0   0.94  0.78  0.55  0.33  0.16  0.1

A schedule returns the factor of the peak learning rate for update number ``step``, counted from 0. It has no state: a
resumed run continues with the next number, and a run whose length was changed follows the new curve from there. Update
s of a warm-up of w updates gets the factor (s + 1) / w, so that the first update does not have a rate of 0 and the last
has the peak rate. The decay takes the remaining steps and would reach ``final_fraction`` at update ``num_steps``, which
is the first that is not made, so the last update is one step above it. A recipe's ``decay_end`` replaces ``num_steps``;
the rate stays constant after it.

The old systems began with a factor of 0, so during warm-up their update s has the rate of our update s - 1; both reach
the peak at s = w. The decays agree, except that the late TensorFlow BERT was one step ahead.
"""

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial, singledispatch
from typing import Any, TypeAlias

from hornbook.config.optimizers import (
    ByStepConfig,
    ConstantConfig,
    CosineConfig,
    DecayConfig,
    LinearConfig,
    NaturalExponentialConfig,
    PolynomialConfig,
    ScheduleConfig,
    WarmupStableDecayConfig,
    read_steps,
    value_at,
)
from hornbook.errors import UserError

Schedule: TypeAlias = Callable[[int], float]


def constant(step: int, *, warmup_steps: int) -> float:
    """Return ``min(1, (step + 1) / warmup_steps)``."""
    return (step + 1) / warmup_steps if step < warmup_steps else 1.0


def linear(step: int, *, num_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Return a linear decay: ``1 - (1 - final_fraction) * progress``, with progress from 0 to 1 over the decay."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 1.0 - (1.0 - final_fraction) * _progress(step, num_steps, warmup_steps)


def cosine(step: int, *, num_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Return a cosine decay: ``final_fraction + (1 - final_fraction) * (1 + cos(pi * progress)) / 2``.

    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017, without the restarts.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    height = (1.0 + math.cos(math.pi * _progress(step, num_steps, warmup_steps))) / 2.0
    return final_fraction + (1.0 - final_fraction) * height


def warmup_stable_decay(
    step: int,
    *,
    lengths: Mapping[int, float],
    warmup_steps: int,
    final_fraction: float,
    decay_fraction: float,
    decay_power: float,
) -> float:
    """Return a constant factor, then a decay: ``1 - (1 - final_fraction) * progress ** decay_power``.

    Progress covers the last ``decay_fraction`` of the steps, rounded up, or fewer after a longer warm-up. Hu et al.,
    "MiniCPM", 2024; Hägele et al., "Scaling laws and compute-optimal training beyond fixed training durations", 2024,
    find that a power of 0.5 over a fifth of the steps performs as well as a cosine of that length.

    ``lengths`` has the length of the run by the step from which it was planned, first that of step 0. A decay that has
    begun continues from its factor to the end of the new length, so a later plan never changes the factors before it.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    height, factor = 1.0, 1.0
    for (planned, length), until in zip(lengths.items(), [*lengths, step][1:], strict=True):
        start = max(warmup_steps, planned)
        if height == 1.0:
            start = max(start, int(length) - math.ceil(Decimal(str(decay_fraction)) * int(length)))
        now = min(step, until)
        progress = _progress(now, int(length), start) if now > start else 0.0
        factor = height - (height - final_fraction) * math.pow(progress, decay_power)
        if step <= until:
            break
        height = factor
    return factor


def polynomial(
    step: int,
    *,
    num_steps: int,
    warmup_steps: int,
    final_fraction: float,
    warmup_power: float,
    decay_power: float,
    decay_steps: int | None,
) -> float:
    """Return a warm-up and a decay by powers.

    ``((step + 1) / warmup_steps) ** warmup_power``, then, with progress over ``decay_steps`` or the rest of the run,
    ``final_fraction + (1 - final_fraction) * (1 - progress) ** decay_power``.

    GroupBERT uses the powers 0.5 and 1 (Chelombiev et al. 2021). The old systems' square-root decay to a minimum for
    RigL is ``decay_power`` 0.5 over ``decay_steps``.
    """
    if step < warmup_steps:
        return math.pow((step + 1) / warmup_steps, warmup_power)
    end = num_steps if decay_steps is None else warmup_steps + decay_steps
    height = math.pow(1.0 - _progress(step, end, warmup_steps), decay_power)
    return final_fraction + (1.0 - final_fraction) * height


def natural_exponential(step: int, *, warmup_steps: int, stair_steps: int, stair_decay: float) -> float:
    """Return a stepwise exponential decay: ``exp(-stair_decay * ((step - warmup_steps) // stair_steps))``."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return math.exp(-stair_decay * ((step - warmup_steps) // stair_steps))


def warmup_steps_of(config: ScheduleConfig, num_steps: int) -> int:
    """Return the number of warm-up steps of a run of ``num_steps``.

    A fraction refers to the run, or to ``decay_end`` if it is set (Megatron-LM's ``--lr-warmup-fraction`` of
    ``--lr-decay-iters``), and is rounded up in decimal arithmetic: 0.28 of 10500 steps is 2940. transformers multiplies
    floats before rounding up and gets 2941.
    """
    if config.warmup_fraction is None:
        return config.warmup_steps
    return math.ceil(Decimal(str(config.warmup_fraction)) * _end_of(config, num_steps))


def _end_of(config: ScheduleConfig, num_steps: int) -> int:
    """Return the update at which the decay ends, or the run if the schedule has no decay."""
    return (config.decay_end if isinstance(config, DecayConfig) else None) or num_steps


def _decay_of(config: DecayConfig, num_steps: int) -> dict[str, Any]:
    """Return the arguments that all decaying schedules have in common."""
    return {
        "num_steps": _end_of(config, num_steps),
        "warmup_steps": warmup_steps_of(config, num_steps),
        "final_fraction": config.final_fraction,
    }


def _build_warmup_stable_decay(config: WarmupStableDecayConfig, num_steps: int) -> Schedule:
    lengths = read_steps(config.lengths) if config.lengths else {0: _end_of(config, num_steps)}
    return partial(
        warmup_stable_decay,
        lengths=lengths,
        warmup_steps=warmup_steps_of(config, int(lengths[0])),
        final_fraction=config.final_fraction,
        decay_fraction=config.decay_fraction,
        decay_power=config.decay_power,
    )


def _progress(step: int, num_steps: int, warmup_steps: int) -> float:
    """Return the completed share of the decay: 0 at step ``warmup_steps``, 1 from step ``num_steps`` on."""
    return 1.0 if step >= num_steps else (step - warmup_steps) / (num_steps - warmup_steps)


SCHEDULES: dict[type, Callable[[Any, int], Schedule]] = {
    ConstantConfig: lambda config, num_steps: partial(constant, warmup_steps=warmup_steps_of(config, num_steps)),
    LinearConfig: lambda config, num_steps: partial(linear, **_decay_of(config, num_steps)),
    CosineConfig: lambda config, num_steps: partial(cosine, **_decay_of(config, num_steps)),
    WarmupStableDecayConfig: _build_warmup_stable_decay,
    PolynomialConfig: lambda config, num_steps: partial(
        polynomial,
        **_decay_of(config, num_steps),
        warmup_power=config.warmup_power,
        decay_power=config.decay_power,
        decay_steps=config.decay_steps,
    ),
    NaturalExponentialConfig: lambda config, num_steps: partial(
        natural_exponential,
        warmup_steps=warmup_steps_of(config, num_steps),
        stair_steps=config.stair_steps,
        stair_decay=config.stair_decay,
    ),
    ByStepConfig: lambda config, num_steps: partial(value_at, read_steps(config.factors)),
}
"""The builder of each config dataclass; called with the options and the number of updates."""


@singledispatch
def build_schedule(config: object, num_steps: int) -> Schedule:
    """Return the schedule of a recipe's ``[schedule]`` section over ``num_steps`` updates.

    ``@build_schedule.register`` on a function that takes another config dataclass adds a schedule.

    Raises:
        UserError: nothing is registered for this dataclass.
    """
    name = type(config).__name__
    raise UserError(f"there is no schedule for {name}: register a function for it with build_schedule.register")


for _config, _builder in SCHEDULES.items():
    build_schedule.register(_config, _builder)
