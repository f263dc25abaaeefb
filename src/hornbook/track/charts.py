"""Axes and points of line charts for the terminal; ``charts.js`` does the same for the page.

At most ``MAX_POINTS`` points are drawn per series, the minimum and maximum of every slice, so that a spike of one step
remains visible among a million rows. Axes whose values span more than a factor of ``LOG_FROM`` are logarithmic.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Point = tuple[float, float | None]
"""A horizontal position and a value; ``None`` breaks the line."""
MAX_POINTS = 1500
LOG_FROM = 2.5
_TINY = 1e-100
_LOG_MANTISSAS = (
    (1.0,),
    (1.0, 3.0),
    (1.0, 2.0, 5.0),
    (1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
    tuple(m / 2 for m in range(2, 20)),
)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis that maps values between ``low`` and ``high`` to 0 to 1."""

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Return the position of ``value``, clamped to the axis."""
        clipped = min(max(value, self.low), self.high)
        if self.logarithmic:
            return math.log(clipped / self.low) / math.log(self.high / self.low)
        return (clipped - self.low) / (self.high - self.low)

    def ticks(self, wanted: int) -> list[float]:
        """Return about ``wanted`` round values on the axis."""
        return _log_ticks(self.low, self.high, wanted) if self.logarithmic else _ticks(self.low, self.high, wanted)


def slices(points: Sequence[Point], num_slices: int) -> Iterator[Sequence[Point]]:
    """Split ``points`` into slices whose lengths differ by at most one."""
    for part in range(num_slices):
        yield points[part * len(points) // num_slices : (part + 1) * len(points) // num_slices]


def decimate(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Return at most ``limit`` points that draw the same picture: the minimum and maximum of each slice, in order.

    The first and the last point are always included. A slice of only ``None`` remains a gap.
    """
    if len(points) <= limit:
        return list(points)
    kept: list[Point] = [points[0]]
    for piece in slices(points[1:-1], max(1, (limit - 2) // 2)):
        values = [(value, at) for at, (_, value) in enumerate(piece) if value is not None]
        chosen = sorted({min(values)[1], max(values)[1]}) if values else [0]
        kept.extend(piece[at] for at in chosen)
    return [*kept, points[-1]]


def x_axis(lines: Sequence[Sequence[Point]]) -> Axis:
    """Return the horizontal axis of all points, from zero if they begin near it."""
    places = [points[at][0] for points in lines for at in (0, -1)]
    low, high = min(places), max(places)
    low = 0.0 if 0 < low < 0.1 * high else low
    return Axis(low=low, high=high) if high > low else Axis(low=low - 1, high=high + 1)


def y_axis(lines: Sequence[Sequence[Point]]) -> Axis:
    """Return the vertical axis of all values, logarithmic if they span more than a factor of ``LOG_FROM``."""
    values = [value for points in lines for _, value in points if value is not None]
    low, high = min(values), max(values)
    if low > _TINY and high / low > LOG_FROM:
        margin = (high / low) ** 0.04
        return Axis(low=low / margin, high=high * margin, logarithmic=True)
    margin = (high - low) * 0.06 if high - low > _TINY else abs(high) * 0.1 or 1.0
    return Axis(low=low - margin, high=high + margin)


def _ticks(low: float, high: float, wanted: int) -> list[float]:
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _log_ticks(low: float, high: float, wanted: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    if len(powers) > wanted + 2:
        return [10.0**power for power in powers[:: math.ceil(len(powers) / wanted)] if low <= 10.0**power <= high]
    choices = [
        [mantissa * 10.0**power for power in powers for mantissa in mantissas if low <= mantissa * 10.0**power <= high]
        for mantissas in _LOG_MANTISSAS
    ]
    return min(choices, key=lambda found: abs(len(found) - wanted))
