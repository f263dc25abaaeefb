"""Confidence intervals for the ratio of two programs' speeds, from times of independent processes.

Times are compared by the ratio of their geometric means, that is by differences of logarithms, with 95 % intervals:

- ``welch``: for two independent sets of runs. Welch's t interval with Satterthwaite's degrees of freedom (Welch, "The
  generalization of Student's problem when several different population variances are involved", Biometrika 34, 1947).
- ``paired``: for alternating variants, whose i-th runs had the same state of the machine. Student's t interval of the
  differences.

Each number comes from a separate process, since memory layout, clock rate and other load vary more between processes
than within one (Kalibera and Jones, "Rigorous benchmarking in reasonable time", ISMM 2013).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The ratio of two sets of numbers and its 95 % interval, None with fewer than two numbers."""

    ratio: float
    low: float | None
    high: float | None

    @property
    def is_shown(self) -> bool:
        """Whether the interval excludes 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Summary of the numbers of several processes: median, quartiles, minimum and maximum."""

    num: int
    least: float
    lower_quartile: float
    median: float
    upper_quartile: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarize one or more numbers; quartiles are interpolated linearly (type 7 of Hyndman and Fan)."""
        lower, upper = np.quantile(values, (0.25, 0.75)).tolist()
        return cls(
            num=len(values),
            least=min(values),
            lower_quartile=lower,
            median=median(values),
            upper_quartile=upper,
            greatest=max(values),
        )


def welch(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Return the ratio of ``b`` to ``a``, positive numbers that were measured independently."""
    log_a, log_b = [math.log(value) for value in a], [math.log(value) for value in b]
    difference = fmean(log_b) - fmean(log_a)
    if min(len(a), len(b)) < 2:
        return Ratio(ratio=math.exp(difference), low=None, high=None)
    parts = [(variance(values) / len(values), len(values) - 1) for values in (log_a, log_b)]
    total = sum(part for part, _ in parts)
    if total == 0:
        return Ratio(ratio=math.exp(difference), low=math.exp(difference), high=math.exp(difference))
    freedom = total**2 / sum(part**2 / degrees for part, degrees in parts)
    return _around(difference, math.sqrt(total), freedom)


def paired(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Return the ratio of ``b`` to ``a``, positive numbers whose i-th values were measured one after the other."""
    differences = [math.log(later / earlier) for earlier, later in zip(a, b, strict=True)]
    if len(differences) < 2:
        return Ratio(ratio=math.exp(fmean(differences)), low=None, high=None)
    return _around(fmean(differences), math.sqrt(variance(differences) / len(differences)), len(differences) - 1)


def _around(difference: float, error: float, freedom: float) -> Ratio:
    reach = t_quantile((1 + CONFIDENCE) / 2, freedom) * error
    return Ratio(ratio=math.exp(difference), low=math.exp(difference - reach), high=math.exp(difference + reach))


def t_quantile(share: float, freedom: float) -> float:
    """Return the quantile ``share`` > 0.5 of Student's t distribution with ``freedom`` >= 1 degrees of freedom.

    The density over the angle atan(t / sqrt(freedom)) is a power of the cosine, summed by the trapezoidal rule.
    """
    angles = np.linspace(0, math.pi / 2, 1 << 17)
    heights = np.cos(angles) ** (freedom - 1)
    areas = np.cumsum(heights) - (heights[0] + heights) / 2
    return math.sqrt(freedom) * math.tan(np.interp((2 * share - 1) * areas[-1], areas, angles))
