"""Line charts as plain SVG and HTML, readable at any width.

    points (step, value | None) ──smooth──► ──decimate──► Axis.place ──► <path d="M0 812L1 790...">

The lines are an SVG that is stretched to whatever width there is; the labels are HTML placed by percentages, so that
they keep their size on a telephone and on paper. Moving over a chart shows the values at that step (CSS, no script).
At most ``MAX_POINTS`` points are drawn for a series, the least and the greatest of every slice, so that a spike of one
step survives a million rows. A logarithmic axis is chosen where the values span more than a factor of ``LOG_FROM``.
The price of a stretched SVG: no markers but dots, which are round ends of lines of no length, since a circle would
become an ellipse.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from hornbook.track import units
from hornbook.track.page import Html, join, tag

Point = tuple[float, float | None]
MAX_POINTS = 1500
NUM_SMOOTHED = 1000
SMOOTHED_FROM = 40
LOG_FROM = 2.5
NUM_PROBES = 100
_WIDTH, _HEIGHT = 1000, 500
_TINY = 1e-100
_LOG_MANTISSAS = (
    (1.0,),
    (1.0, 3.0),
    (1.0, 2.0, 5.0),
    (1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
    tuple(m / 2 for m in range(2, 20)),
)


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line; a ``None`` value breaks it.

    Attributes:
        label: names it.
        style: its look by class: "raw" faint, "train", "validation", and "run0" to "run7" for runs side by side.
        points: in the order of their places on the horizontal axis.
        fitted: whether it is a curve through measured points, so that it has a value at any place between its ends.
    """

    label: str
    style: str
    points: Sequence[Point]
    fitted: bool = False


@dataclass(frozen=True, kw_only=True)
class XAxis:
    """What a chart is drawn over.

    Attributes:
        name: in the plural.
        label: of one value.
        show: how a value is written.
        exact: whether values are whole numbers that series share, as steps are; then a value is shown at its own alone.
    """

    name: str
    label: str
    show: Callable[[float], str] = units.count
    exact: bool = False


STEPS = XAxis(name="steps", label="step", exact=True)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Values between ``low`` and ``high``, placed from 0 to 1."""

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where ``value`` lies; outside the axis it is put on its end."""
        clipped = min(max(value, self.low), self.high)
        if self.logarithmic:
            return math.log(clipped / self.low) / math.log(self.high / self.low)
        return (clipped - self.low) / (self.high - self.low)

    def ticks(self, wanted: int) -> list[float]:
        """About ``wanted`` round values inside the axis."""
        return _log_ticks(self.low, self.high, wanted) if self.logarithmic else _ticks(self.low, self.high, wanted)


def smooth(points: Sequence[Point], share: float = 1 / 20) -> list[Point]:
    """The curve under the noise: at each point, a line fitted to its neighbors (local regression, Cleveland 1979).

    The neighbors are ``share`` of the series, fewer where it began, since a loss falls fastest there. At its end they
    are as many as before, all from one side: fewer would let the noise of the last points bend the curve. A line,
    unlike a mean, does not lag behind. A long series is averaged to ``NUM_SMOOTHED`` points first. ``None`` counts for
    nothing and stays where it is.
    """
    coarse = _averaged(points, NUM_SMOOTHED)
    reach = max(1, round(len(coarse) * share / 2))
    found: list[Point] = []
    for at, (step, value) in enumerate(coarse):
        half = min(reach, at // 2)
        start = max(0, min(at - half, len(coarse) - 2 * half - 1))
        found.append((step, None if value is None else _fitted(coarse[start : start + 2 * half + 1], step)))
    return found


def _averaged(points: Sequence[Point], num_slices: int) -> list[Point]:
    if len(points) <= num_slices:
        return list(points)
    found: list[Point] = []
    for piece in _slices(points, num_slices):
        values = [value for _, value in piece if value is not None]
        found.append((fmean(step for step, _ in piece), fmean(values) if values else None))
    return found


def _fitted(points: Sequence[Point], step: float) -> float:
    """The value at ``step`` of the line that is nearest to ``points`` by least squares."""
    known = [(at, value) for at, value in points if value is not None]
    center, mean = fmean(at for at, _ in known), fmean(value for _, value in known)
    spread = sum((at - center) ** 2 for at, _ in known)
    slope = sum((at - center) * (value - mean) for at, value in known) / spread if spread else 0.0
    return mean + slope * (step - center)


def _slices(points: Sequence[Point], num_slices: int) -> Iterator[Sequence[Point]]:
    """``points`` in pieces that differ in length by one at most."""
    for part in range(num_slices):
        yield points[part * len(points) // num_slices : (part + 1) * len(points) // num_slices]


def decimate(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """At most ``limit`` points that draw the same picture: of each slice, its least and its greatest value, in order.

    The first and the last point always stay. A slice of ``None`` alone stays a gap.
    """
    if len(points) <= limit:
        return list(points)
    kept: list[Point] = [points[0]]
    for piece in _slices(points[1:-1], max(1, (limit - 2) // 2)):
        values = [(value, at) for at, (_, value) in enumerate(piece) if value is not None]
        chosen = sorted({min(values)[1], max(values)[1]}) if values else [0]
        kept.extend(piece[at] for at in chosen)
    return [*kept, points[-1]]


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    unit: str,
    show: Callable[[float], str] = units.significant,
    from_zero: bool = False,
    legend: bool = True,
    marks: Sequence[tuple[float, str]] = (),
    over: XAxis = STEPS,
) -> Html:
    """A figure, or nothing where no series holds a value.

    Args:
        title: what is drawn.
        series: lines, the later above the earlier.
        unit: what the vertical axis counts.
        show: how a value is written.
        from_zero: whether the axis begins at zero; otherwise it fits the values and may be logarithmic.
        legend: whether the lines are named above the chart.
        marks: (step, text) of moments worth a vertical line, as a resume.
        over: the horizontal axis.
    """
    drawn = [item for item in series if any(value is not None for _, value in item.points)]
    if not drawn:
        return Html()
    x, y = x_axis(drawn), y_axis(drawn, from_zero=from_zero)
    marks = [mark for mark in marks if x.low <= mark[0] <= x.high]
    at = [tick for tick in x.ticks(5) if tick == round(tick) or not over.exact]
    described = _described(f"{title} over {over.name}", drawn)
    layers = (_grid(x, y, at), _labels(x, y, at), _svg(drawn, x, y, marks, described), _probes(drawn, x, show, over))
    scale = ", logarithmic" if y.logarithmic else ""
    heading = (tag("h3", title), tag("span", f"{unit}{scale}", class_="unit"))
    return tag(
        "figure",
        tag("figcaption", *heading, _legend(drawn, marks) if legend else ""),
        tag("div", *layers, class_="plot", style=f"margin-left:{_label_room(y)}"),
        tag("p", over.label, class_="x"),
    )


def _legend(series: Sequence[Series], marks: Sequence[tuple[float, str]]) -> Html:
    """What each line is; a line alone is named by the title."""
    if len(series) == 1:
        return Html()
    labels = [tag("li", item.label, class_=item.style) for item in series]
    return tag("ul", *labels, *(tag("li", text, class_="mark") for _, text in marks[:1]))


def x_axis(series: Sequence[Series]) -> Axis:
    """The places of all points; from zero where they begin near it."""
    places = [item.points[at][0] for item in series for at in (0, -1)]
    low, high = min(places), max(places)
    low = 0.0 if 0 < low < 0.1 * high else low
    return Axis(low=low, high=high) if high > low else Axis(low=low - 1, high=high + 1)


def y_axis(series: Sequence[Series], *, from_zero: bool) -> Axis:
    """An axis that holds all values, logarithmic where they span more than a factor of ``LOG_FROM``."""
    values = [value for item in series for _, value in item.points if value is not None]
    low, high = min(values), max(values)
    if not from_zero and low > _TINY and high / low > LOG_FROM:
        margin = (high / low) ** 0.04
        return Axis(low=low / margin, high=high * margin, logarithmic=True)
    low = min(low, 0.0) if from_zero else low
    margin = (high - low) * 0.06 if high - low > _TINY else abs(high) * 0.1 or 1.0
    return Axis(low=low if from_zero and low == 0 else low - margin, high=high + margin)


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


def _percent(place: float) -> str:
    return f"{100 * place:.2f}%"


def _grid(x: Axis, y: Axis, at: Sequence[float]) -> Html:
    rows = [tag("i", class_="gy", style=f"bottom:{_percent(y.place(tick))}") for tick in y.ticks(5)]
    columns = [tag("i", class_="gx", style=f"left:{_percent(x.place(tick))}") for tick in at]
    return tag("div", *rows, *columns, class_="grid", aria_hidden="true")


def _labels(x: Axis, y: Axis, at: Sequence[float]) -> Html:
    rows = [
        tag("span", units.tick(tick), class_="ly", style=f"bottom:{_percent(y.place(tick))}") for tick in y.ticks(5)
    ]
    columns = [tag("span", units.tick(tick), class_="lx", style=f"left:{_percent(x.place(tick))}") for tick in at]
    return tag("div", *rows, *columns, class_="labels", aria_hidden="true")


def _label_room(y: Axis) -> str:
    """What the longest label of the vertical axis takes, and no less than most take, so that charts line up."""
    longest = max((len(units.tick(tick)) for tick in y.ticks(5)), default=0)
    return f"max(3.1rem, {0.8 * longest:.1f}ch + .7rem)"


def _svg(series: Sequence[Series], x: Axis, y: Axis, marks: Sequence[tuple[float, str]], described: str) -> Html:
    lines = [line for item in series for line in _drawn(item, x, y)]
    cuts = [
        tag("path", d=f"M{at:.1f} 0V{_HEIGHT}", class_="mark") for at in (x.place(step) * _WIDTH for step, _ in marks)
    ]
    return tag(
        "svg",
        *cuts,
        *lines,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=described,
    )


def _drawn(series: Series, x: Axis, y: Axis) -> list[Html]:
    """A path for the line, and one for points between two gaps: lines of no length, which a round cap makes dots.

    A point that is all there is gets a larger one, since no line leads to it.
    """
    lines, dots = [], []
    for _, run in itertools.groupby(decimate(series.points), key=lambda point: point[1] is None):
        places = [
            f"{x.place(step) * _WIDTH:.1f} {(1 - y.place(value)) * _HEIGHT:.1f}"
            for step, value in run
            if value is not None
        ]
        if len(places) == 1:
            dots.append(f"M{places[0]}h0")
        elif places:
            lines.append(f"M{'L'.join(places)}")
    lone = "" if lines or len(dots) > 1 else " lone"
    paths = ((lines, series.style), (dots, f"{series.style} dot{lone}"))
    return [tag("path", d="".join(moves), class_=style) for moves, style in paths if moves]


def _described(title: str, series: Sequence[Series]) -> str:
    """The chart in words, for those who hear the page."""
    said = []
    for item in series:
        values = [value for _, value in item.points if value is not None]
        numbers = f"first {units.significant(values[0])}, last {units.significant(values[-1])}"
        said.append(f"{item.label}: {numbers}, least {units.significant(min(values))}")
    return f"{title}. {'; '.join(said)}."


def _probes(series: Sequence[Series], x: Axis, show: Callable[[float], str], over: XAxis) -> Html:
    """Upright bands that show, under the mouse, a place on the axis and what was measured there.

    A band stands for the place in it where the rarest of the lines was measured, or else for the nearest of all places.
    """
    columns = [[place for place, value in item.points if value is not None] for item in series]
    everywhere = sorted({place for column in columns for place in column})
    num_bands = min(NUM_PROBES, 4 * len(everywhere))
    width = (x.high - x.low) / num_bands
    bands = []
    for band in range(num_bands):
        center = x.low + (band + 0.5) * width
        nearest = [column[_nearest(column, center)] for column in sorted(columns, key=len)]
        inside = [place for place in nearest if int((place - x.low) / width) in (band, band + (place == x.high))]
        chosen = inside[0] if inside else everywhere[_nearest(everywhere, center)]
        reach = 0.0 if over.exact else width / 2
        values = [
            join([tag("em", item.label if len(series) > 1 else ""), " ", show(value)])
            for item in series
            if (value := _value_at(item, chosen, reach)) is not None
        ]
        bands.append(tag("i", tag("b", f"{over.label} {over.show(chosen)} ", *values)))
    return tag("div", *bands, class_="probes", aria_hidden="true")


def _value_at(series: Series, place: float, reach: float) -> float | None:
    """The value that was measured within ``reach`` of a place; between the ends of a fitted curve, the nearest one."""
    places = [at for at, _ in series.points]
    near, value = series.points[_nearest(places, place)]
    is_inside = series.fitted and places[0] <= place <= places[-1]
    return value if is_inside or abs(near - place) <= reach else None


def _nearest(places: Sequence[float], wanted: float) -> int:
    after = bisect.bisect_left(places, wanted)
    around = [at for at in (after - 1, after) if 0 <= at < len(places)]
    return min(around, key=lambda at: abs(places[at] - wanted))
