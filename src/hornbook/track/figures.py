"""The charts of a run's page: their lines and points, as JSON for ``charts.js``.

::

    rows of metrics.jsonl ──figures_of──► Figure("Loss", lines=[Line("train/loss"), Line("validation/loss")])
                          ──series_of───► {"train/loss": {"points": [[step, value], ...], "means": [...]}, ...}

A long line is sent as ``charts.MAX_POINTS`` points that draw the same picture, and as the means of ``NUM_MEANS`` slices
for smoothing, since smoothing the extremes would distort the curve.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from hornbook.track import metrics
from hornbook.track.charts import MAX_POINTS, Point, decimate, slices
from hornbook.track.curves import run_id
from hornbook.track.runs import Row, RunFiles
from hornbook.track.units import number

TERMS = {
    "mlm": ("MLM loss", "nats"),
    "mlm_accuracy": ("MLM accuracy", "share of the masked tokens"),
    "nsp": ("NSP loss", "nats"),
    "nsp_accuracy": ("NSP accuracy", "share of the pairs"),
    "accuracy": ("Accuracy", "share that is right"),
    "padding": ("Padding", "share of all places"),
}
"""Title and unit of the metrics in an encoder's rows besides the loss."""
NUM_MEANS = 1000
NUM_COLORS, NUM_DASHES = 8, 3
"""Colors of runs in ``page.css``, and the kinds of dashes there for further runs."""
_PLACES = ("train/tokens", "train/seconds")
"""Series that map a step to the other horizontal axes."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a chart.

    Attributes:
        key: key of its series: ``train/loss``, ``validation/loss/wiki``, or ``task/NAME/METRIC``.
        label: "training" or "validation"; empty if the chart's title suffices.
        style: its CSS class: "train" or "validation".
        noisy: whether it is smoothed.
    """

    key: str
    label: str
    style: str
    noisy: bool = False


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart.

    Attributes:
        title: title of the chart.
        unit: unit of the vertical axis.
        lines: lines, later ones drawn above earlier ones.
        large: whether it is as wide as the page.
        zero: whether the vertical axis starts at zero rather than fitting the values.
        short: whether values are abbreviated, as 24.1k.
        by_objective: whether values are comparable only between runs with the same objective.
    """

    title: str
    unit: str
    lines: Sequence[Line] = field(default_factory=tuple)
    large: bool = False
    zero: bool = False
    short: bool = False
    by_objective: bool = False


def figures_of(run: RunFiles) -> list[Figure]:
    """Return the charts of a run, in order, with the lines that have values."""
    train, validation = run.of_kind("train"), run.of_kind("validation")
    terms = _terms([*train, *validation])
    unit = "nats" if _terms(train) else "nats per token"
    figures = [
        Figure(title="Loss", unit=unit, lines=_both("loss"), large=True, by_objective=True),
        _one("Learning rate", "train/learning_rate", "as scheduled", zero=True),
        _one("Gradient norm", "train/gradient_norm", "before clipping", noisy=True),
        _one("Speed", "train/tokens_per_second", "tokens per second", noisy=True, zero=True, short=True),
        _one("Compute", "train/tflops", "TFLOP/s of the model", noisy=True, zero=True),
        _one("MFU", "train/mfu", "share of the peak rate", noisy=True, zero=True),
        _one("Bits per byte", "validation/bits_per_byte", "validation", by_objective=True),
        *(Figure(title=TERMS[term][0], unit=TERMS[term][1], lines=_both(term, held_out="held out"),
                 zero=TERMS[term][1] != "nats", by_objective=True) for term in terms),
        *(_one(f"Validation loss, {name}", f"validation/{column}", "nats", by_objective=True)
          for name, column in metrics.store_losses(validation[-1] if validation else {}).items()),
        *(_one(name, f"task/{name}/{metric}", metric) for name, metric in leading_metrics(run.of_kind("task")).items()),
    ]  # fmt: skip

    known = {key for key in _keys(figures) if any(value is not None for _, value in _values(run.rows, key))}
    lines = [(figure, [line for line in figure.lines if line.key in known]) for figure in figures]
    return [replace(figure, lines=found) for figure, found in lines if found]


def _keys(figures: Iterable[Figure]) -> Iterator[str]:
    return (line.key for figure in figures for line in figure.lines)


def _both(column: str, held_out: str = "validation") -> list[Line]:
    return [
        Line(key=f"train/{column}", label="training", style="train", noisy=True),
        Line(key=f"validation/{column}", label=held_out, style="validation"),
    ]


def _one(title: str, key: str, unit: str, *, noisy: bool = False, **options: bool) -> Figure:
    line = Line(key=key, label="", style="train", noisy=noisy)
    return Figure(title=title, unit=unit, lines=[line], **options)


def _terms(rows: Sequence[Row]) -> list[str]:
    """Return the terms of an encoder's objective and the other metrics in its rows, in chart order.

    A single loss is left to the large chart, and metrics that are always zero are left out.
    """
    found = [name for name in TERMS if any(row.get(name) for row in rows)]
    return found if "nsp" in found else [name for name in found if name != "mlm"]


def leading_metrics(rows: Sequence[Row]) -> dict[str, str]:
    """Return the first metric of each task that ran during training, from the rows of kind ``task``."""
    leading: dict[str, str] = {}
    for row in rows:
        leading.setdefault(str(row.get("task")), str(row.get("metric")))
    return leading


def series_of(rows: Sequence[Row], figures: Iterable[Figure], *, whole: bool = True) -> dict[str, Any]:
    """Return the series of all lines that have a point in the rows, by key.

    Args:
        rows: rows of the log, all or only later ones.
        figures: charts whose lines to return.
        whole: whether these are all rows, so that long series are shortened.
    """
    keys = [*_PLACES, *_keys(figures)]
    series = {}
    for key in dict.fromkeys(keys):
        points = sorted(dict(_values(rows, key)).items())  # of a step repeated after a resume, the last row counts
        if any(value is not None for _, value in points):
            series[key] = _shortened(points) if whole else {"points": _rounded(points)}
    return series


def line_styles(kept: Sequence[int | None]) -> list[int]:
    """Return the style of each run that is shown: the one that it has already, or the first that is free.

    A style beyond the colors is not kept if colors are free. See `style_class`.
    """
    most = max(NUM_COLORS, len(kept))
    known = [style if style is not None and 0 <= style < most else None for style in kept]
    free = (style for style in itertools.count() if style not in known)
    return [next(free) if style is None or style in known[:at] else style for at, style in enumerate(known)]


def style_class(style: int) -> str:
    """Return the CSS classes of a style: ``run3``, or ``run3 dash1`` if the colors are taken."""
    dashes, color = divmod(style, NUM_COLORS)
    return f"run{color} dash{min(dashes, NUM_DASHES)}" if dashes else f"run{color}"


def curves_of(run: RunFiles, *, label: str, number: int, since: int = 0, token: str = "") -> dict[str, Any]:
    """Return a run's curves as JSON for the page.

    Args:
        run: the run's files.
        label: "A", "B", ..., if several runs are shown.
        number: its style, from `line_styles`, if several runs are shown.
        since: number of log rows that the page already has.
        token: identifies the log of these rows.
    """
    figures = figures_of(run)
    return {
        "id": run_id(run.folder), "name": run.name, "folder": run.title,
        "objective": run.objective, "label": label, "number": number,
        "marks": [(step, "resumed") for step in _resumes(run)],
        "figures": [asdict(figure) for figure in figures],
        "series": series_of(run.rows[since:], figures, whole=since == 0),
        "from": since, "at": len(run.rows), "token": token,
    }  # fmt: skip


def _resumes(run: RunFiles) -> Iterator[float]:
    for session in run.sessions:
        if step := number(session, "from_step"):
            yield step


def _values(rows: Iterable[Row], key: str) -> Iterator[Point]:
    kind, _, column = key.partition("/")
    of_task, column = (column, "value") if kind == "task" else ("", column)
    for row in rows:
        if row.get("kind") == kind and (not of_task or f"{row.get('task')}/{row.get('metric')}" == of_task):
            yield float(row["step"]), number(row, column)


def _shortened(points: list[Point]) -> dict[str, Any]:
    if len(points) <= MAX_POINTS:
        return {"points": _rounded(points)}
    means: list[Point] = []
    for piece in slices(points, NUM_MEANS):
        values = [value for _, value in piece if value is not None]
        means.append((fmean(step for step, _ in piece), fmean(values) if values else None))
    return {"points": _rounded(decimate(points)), "means": _rounded(means)}


def _rounded(points: Iterable[Point]) -> list[tuple[float, float | None]]:
    """Return points with seven digits, twice what a chart resolves; integer steps stay integers."""
    return [
        (int(step) if step == int(step) else round(step, 1), None if value is None else float(f"{value:.7g}"))
        for step, value in points
    ]
