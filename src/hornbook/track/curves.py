"""Curves of several runs over a common axis for the terminal: steps, tokens or training time.

    metrics.jsonl of A, B ──charts_of──► Curve(label="A", points=[(1024.0, 7.1), ...]) ──► track/terminal_chart

Validation rows have no tokens or seconds, so their horizontal position is interpolated between training rows.
"""

import bisect
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from hornbook.track.charts import Point
from hornbook.track.runs import RunFiles
from hornbook.track.units import number
from hornbook.wording import one_line

Over: TypeAlias = Literal["steps", "tokens", "time"]
AXES: tuple[Over, ...] = ("steps", "tokens", "time")
_TIMES = ((2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One run's line in a chart."""

    label: str
    """The run's label: "A", "B", ..."""
    number: int
    """The run's number, from 0, which determines its color."""
    points: list[Point]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves of runs with the same objective, so that their losses can be compared."""

    title: str
    unit: str
    over: str
    """Label of the horizontal axis: "step", "tokens", "minutes of training"."""
    curves: list[Curve]


def run_id(folder: Path) -> str:
    """Return a name of a folder for addresses and attributes: its path, without what a browser would change.

    Control characters and bytes that are not UTF-8 are escaped; a hash of the path then keeps the name unique.
    """
    path = str(folder)
    shown = one_line(path)
    return path if shown == path else f"{shown}~{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


def run_labels(num_runs: int) -> list[str]:
    """Return short names of runs: A to Z, then A1, B1, ..."""
    return [chr(ord("A") + at % 26) + (str(at // 26) if at >= 26 else "") for at in range(num_runs)]


def charts_of(runs: Sequence[RunFiles], over: Over) -> list[Chart]:
    """Return the charts of training loss, validation loss and bits per byte, one for each objective.

    Args:
        runs: runs in the order of their labels.
        over: the horizontal axis.
    """
    axis, scale = _axis(runs, over)
    labels = run_labels(len(runs))
    objectives = list(dict.fromkeys(run.objective for run in runs))
    charts = []
    for objective in objectives:
        suffix = f" of {objective or 'an unknown objective'}" if len(objectives) > 1 else ""
        group = [(at, run) for at, run in enumerate(runs) if run.objective == objective]
        for title, kind, key, unit in (
            ("Training loss", "train", "loss", "nats"),
            ("Validation loss", "validation", "loss", "nats"),
            ("Bits per byte", "validation", "bits_per_byte", "validation split"),
        ):
            found = [
                Curve(label=labels[at], number=at, points=_points(run, kind, key, over, scale)) for at, run in group
            ]
            curves = [curve for curve in found if any(value is not None for _, value in curve.points)]
            if curves:
                charts.append(Chart(title=f"{title}{suffix}", unit=unit, over=axis, curves=curves))
    return charts


def _axis(runs: Sequence[RunFiles], over: Over) -> tuple[str, float]:
    """Return the label of the axis and the divisor of its values."""
    if over == "steps":
        return "step", 1.0
    if over == "tokens":
        return "tokens", 1.0
    longest = max((seconds for run in runs for _, seconds in _places(run, over)), default=0.0)
    scale, name = next((scale, name) for least, scale, name in _TIMES if longest >= least)
    return f"{name} of training", scale


def _points(run: RunFiles, kind: str, key: str, over: Over, scale: float) -> list[Point]:
    """Return (position, value) of each step, from its last row, leaving out steps with an unknown position."""
    values = {float(row["step"]): number(row, key) for row in run.of_kind(kind)}
    place_of = _interpolation(_places(run, over))
    found = ((place_of(step) if over != "steps" else step, value) for step, value in sorted(values.items()))
    return [(place / scale, value) for place, value in found if place is not None]


def _places(run: RunFiles, over: Over) -> list[tuple[float, float]]:
    """Return (step, tokens or seconds) of the training rows, from the start."""
    rows = run.of_kind("train")
    key = "tokens" if over == "tokens" else "seconds"
    places = {0.0: 0.0}
    total = before = 0.0
    for row in rows:
        value = number(row, key)
        if value is None:
            continue
        total += before if value < before else 0.0  # a session that counts from zero
        before = value
        places[float(row["step"])] = total + value
    return sorted(places.items()) if len(places) > 1 else []


def _interpolation(places: Sequence[tuple[float, float]]) -> Callable[[float], float | None]:
    """Return the linear interpolation from steps to positions; None beyond the last."""
    steps = [step for step, _ in places]

    def place_of(step: float) -> float | None:
        after = bisect.bisect_left(steps, step)
        if after == len(steps):
            return None
        (high_step, high) = places[after]
        if high_step == step or after == 0:
            return high
        (low_step, low) = places[after - 1]
        return low + (high - low) * (step - low_step) / (high_step - low_step)

    return place_of
