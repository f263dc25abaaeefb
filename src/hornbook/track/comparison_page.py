"""Runs side by side as one HTML file: curves over each other, over steps, tokens or time, and where the recipes differ.

The three axes are three sets of charts, of which a radio button shows one; the page needs no script.
"""

from collections.abc import Iterator
from pathlib import Path

from hornbook.storage.files import replace_file
from hornbook.track import charts, units
from hornbook.track.curves import AXES, Chart, Over, charts_of, run_labels
from hornbook.track.page import Html, document, join, section, table, tag
from hornbook.track.runs import Comparison, plain_value
from hornbook.version import __version__

NUM_COLORS = 8


def write_comparison(path: Path, comparison: Comparison, over: Over) -> None:
    """Write the page, atomically.

    Args:
        path: of the file.
        comparison: of the runs.
        over: the axis that is shown at first.

    Raises:
        StorageError: the page cannot be written.
    """
    replace_file(path, render_comparison(comparison, over).encode("utf-8"))


def render_comparison(comparison: Comparison, over: Over) -> str:
    """Return the page."""
    names = " · ".join(dict.fromkeys(summary.name for summary in comparison.runs))
    cautions = [tag("p", caution, class_="note") for caution in comparison.cautions]
    return document(
        f"{names} · hornbook",
        tag("header", tag("p", "hornbook", class_="brand"), tag("h1", f"{len(comparison.runs)} runs"), *cautions),
        tag("main", _summaries(comparison), _curves(comparison, over), _differences(comparison)),
        tag("footer", f"Written by hornbook {__version__}"),
    )


def _summaries(comparison: Comparison) -> Html:
    head = ("", "Run", "State", "Objective", "Steps", "Tokens", "Loss", "Validation", "Best", "Bits per byte", "Time")
    rows = [
        (
            _key(number, label),
            summary.folder,
            summary.state,
            summary.objective or units.MISSING,
            units.count(summary.step),
            units.short(summary.tokens),
            units.loss(summary.loss),
            units.loss(summary.validation_loss),
            units.loss(summary.best_validation_loss),
            units.bits(summary.bits_per_byte),
            units.duration(summary.seconds),
        )
        for number, (label, summary) in enumerate(zip(run_labels(len(comparison.runs)), comparison.runs, strict=True))
    ]
    return tag("div", table(head, rows, frozenset(range(4, len(head)))), class_="compared")


def _key(number: int, label: str) -> Html:
    """The label of a run in its color."""
    return tag("span", label, class_=f"key run{number % NUM_COLORS}")


def _curves(comparison: Comparison, over: Over) -> Html:
    drawn: dict[Over, list[Html]] = {
        axis: [_figure(chart) for chart in charts_of(comparison.files, axis)] for axis in AXES
    }
    known = [axis for axis in AXES if drawn[axis]]
    if not known:
        return Html()
    first = over if over in known else known[0]
    return section("Curves", tag("div", *_buttons(known, first), *_panels(drawn), class_="axes"))


def _buttons(known: list[Over], first: Over) -> Iterator[Html]:
    for axis in known:
        checked = "checked" if axis == first else None
        yield tag("input", type="radio", name="over", id=axis, checked=checked)
        yield tag("label", f"over {axis}", for_=axis)


def _panels(drawn: dict[Over, list[Html]]) -> Iterator[Html]:
    for axis, figures in drawn.items():
        yield tag("div", *figures, class_=f"over {axis}")


def _figure(chart: Chart) -> Html:
    """A chart of all its runs; long curves are smoothed, with what was logged behind them, faint."""
    lines, faint = [], []
    for curve in chart.curves:
        style = f"run{curve.number % NUM_COLORS}"
        if len(curve.points) < charts.SMOOTHED_FROM:
            lines.append(charts.Series(label=curve.label, style=style, points=curve.points))
            continue
        faint.append(charts.Series(label=f"{curve.label}, logged", style=f"{style} faint", points=curve.points))
        smooth = charts.smooth(curve.points)
        lines.append(charts.Series(label=curve.label, style=style, points=smooth, fitted=True))
    return charts.line_chart(chart.title, [*faint, *lines], unit=chart.unit, over=chart.over)


def _differences(comparison: Comparison) -> Html:
    labels = run_labels(len(comparison.runs))
    rows = [
        (key, *("not set" if value is None else str(plain_value(value)) for value in values))
        for key, values in comparison.differences.items()
    ]
    keys = [_key(number, label) for number, label in enumerate(labels)]
    found = table(("Recipe", *keys), rows) if rows else tag("p", "The recipes are identical.", class_="note")
    return section("Where the recipes differ", join([found]))
