"""The courses of the learning rate of a recipe's ``[schedule]`` section, one dataclass a ``name``."""

from dataclasses import dataclass

from hornbook.config.options import option
from hornbook.config.registry import register


@dataclass(frozen=True, kw_only=True)
class ConstantConfig:
    """Warm-up, then the peak to the end."""

    name: str = option("constant", help="course of the learning rate")
    warmup_steps: int = option(0, help="steps of linear warm-up from 0", minimum=0)


@dataclass(frozen=True, kw_only=True)
class LinearConfig:
    """Warm-up, then a straight line down."""

    name: str = option("linear", help="course of the learning rate")
    warmup_steps: int = option(0, help="steps of linear warm-up from 0", minimum=0)
    final_fraction: float = option(
        0.0, help="learning rate at the end, as a fraction of the peak", minimum=0, maximum=1
    )


@dataclass(frozen=True, kw_only=True)
class CosineConfig:
    """Warm-up, then half a period of a cosine down (Loshchilov & Hutter 2017)."""

    name: str = option("cosine", help="course of the learning rate")
    warmup_steps: int = option(0, help="steps of linear warm-up from 0", minimum=0)
    final_fraction: float = option(
        0.0, help="learning rate at the end, as a fraction of the peak", minimum=0, maximum=1
    )


register("schedule", "constant", ConstantConfig)
register("schedule", "linear", LinearConfig)
register("schedule", "cosine", CosineConfig)
