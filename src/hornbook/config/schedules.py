"""The courses of the learning rate of a recipe's ``[schedule]`` section, one dataclass a ``name``."""

from dataclasses import dataclass

from hornbook.config import by_step
from hornbook.config.options import Problem, option
from hornbook.config.registry import register
from hornbook.config.values import Mistake


def _name(default: str) -> str:
    return option(default, help="course of the learning rate")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """What all schedules that warm up have."""

    name: str = _name("")
    warmup_steps: int = option(0, help="steps of warm-up; the last of them has the peak", minimum=0)
    warmup_fraction: float | None = option(
        None, help="warm-up as a fraction of the run, or of decay_end, in place of steps", minimum=0, maximum=1
    )

    def problems(self) -> list[Problem]:
        """List what does not fit together."""
        if self.warmup_steps and self.warmup_fraction is not None:
            return [Problem(("warmup_steps", "warmup_fraction"), "give one of them, not both")]
        return []


@dataclass(frozen=True, kw_only=True)
class ConstantConfig(ScheduleConfig):
    """Warm-up, then the peak to the end."""

    name: str = _name("constant")


@dataclass(frozen=True, kw_only=True)
class DecayConfig(ScheduleConfig):
    """What all schedules have that decay to a final rate."""

    final_fraction: float = option(
        0.0, help="learning rate at the end, as a fraction of the peak", minimum=0, maximum=1
    )
    decay_end: int | None = option(
        None, help="step at which the decay ends, warm-up included; none: the end of the run", minimum=1
    )

    def problems(self) -> list[Problem]:
        """List what does not fit together."""
        problems = super().problems()
        if self.decay_end is not None and self.warmup_steps >= self.decay_end:
            message = "the decay ends before the warm-up does; give a later decay_end"
            problems.append(Problem(("warmup_steps", "decay_end"), message))
        return problems


@dataclass(frozen=True, kw_only=True)
class LinearConfig(DecayConfig):
    """Warm-up, then a straight line down."""

    name: str = _name("linear")


@dataclass(frozen=True, kw_only=True)
class CosineConfig(DecayConfig):
    """Warm-up, then half a period of a cosine down (Loshchilov & Hutter 2017)."""

    name: str = _name("cosine")


@dataclass(frozen=True, kw_only=True)
class PolynomialConfig(DecayConfig):
    """Powers of progress up and down; GroupBERT's warm-up is the power 0.5."""

    name: str = _name("polynomial")
    warmup_power: float = option(1.0, help="power of the warm-up; 0.5: by the square root", above=0)
    decay_power: float = option(1.0, help="power of what is left of the decay; 1: a straight line", above=0)
    decay_steps: int | None = option(None, help="steps of the decay; none: up to decay_end", minimum=1)

    def problems(self) -> list[Problem]:
        """List what does not fit together."""
        problems = super().problems()
        if self.decay_steps is not None and self.decay_end is not None:
            problems.append(Problem(("decay_steps", "decay_end"), "give one of them, not both"))
        return problems


@dataclass(frozen=True, kw_only=True)
class NaturalExponentialConfig(ScheduleConfig):
    """Warm-up, then a staircase down by powers of e."""

    name: str = _name("natural_exponential")
    stair_steps: int = option(500, help="steps of a stair", minimum=1)
    stair_decay: float = option(0.05, help="a stair divides by e to this power", minimum=0)


@dataclass(frozen=True, kw_only=True)
class ByStepConfig:
    """A table of factors; with ``optimizer.learning_rate`` 1 they are learning rates."""

    name: str = _name("by_step")
    factors: tuple[str, ...] = option(("0=1",), help="STEP=FACTOR of the peak, from that update (from 0) on")

    def problems(self) -> list[Problem]:
        """List the first mistake in the table."""
        try:
            by_step.read(self.factors)
        except Mistake as mistake:
            return [Problem(("factors",), str(mistake))]
        return []


register("schedule", "constant", ConstantConfig)
register("schedule", "linear", LinearConfig)
register("schedule", "cosine", CosineConfig)
register("schedule", "polynomial", PolynomialConfig)
register("schedule", "natural_exponential", NaturalExponentialConfig)
register("schedule", "by_step", ByStepConfig)
