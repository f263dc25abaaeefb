"""``charts.js`` in a browser: the same numbers and axes as in Python, and figures drawn of odd points."""

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest
from browser import computed, needs_chromium

from hornbook.track import units
from hornbook.track.charts import MAX_POINTS, Axis, decimate

pytestmark = needs_chromium


def test_numbers_and_ticks_are_those_of_the_terminal(tmp_path: Path) -> None:
    rnd = random.Random(1)
    values = [rnd.choice([-1, 1]) * 10 ** rnd.uniform(-8, 14) for _ in range(300)] + [0.0, 5.0, 999.0, 1000.0, 2.5e6]
    axes = [(low := 10 ** rnd.uniform(-6, 6), low * 10 ** rnd.uniform(0.01, 7), bool(at % 2)) for at in range(200)]
    ticks = f"{[[low, high, int(log)] for low, high, log in axes]}.map(([a, b, log]) => new Axis(a, b, log).ticks(5))"
    texts, found = computed(f"[{values}.map((v) => [significant(v), short(v), tickText(v)]), {ticks}]", tmp_path)
    for value, text in zip(values, texts, strict=True):
        assert text == [units.significant(value), units.short(value), units.tick(value)]
    for (low, high, log), row in zip(axes, found, strict=True):
        assert row == pytest.approx(Axis(low=low, high=high, logarithmic=log).ticks(5))


def test_points_are_smoothed_and_thinned(tmp_path: Path) -> None:
    rnd = random.Random(2)
    straight = [[at, None if at == 7 else 3 - 0.5 * at] for at in range(50)]
    noisy = [[at, 2 + 3 * math.exp(-at / 50) + rnd.gauss(0, 0.2)] for at in range(400)]
    long = [[at, 1000.0 if at == 2345 else rnd.gauss(0, 1)] for at in range(20_000)]
    kept, quiet, few = computed(
        f"[smooth({straight}, .1), smooth({noisy}, .1), decimate({long})]".replace("None", "null"), tmp_path
    )
    assert [value for _, value in kept] == pytest.approx([value for _, value in straight], abs=1e-9)
    errors = [value - (2 + 3 * math.exp(-at / 50)) for at, value in quiet]
    assert math.sqrt(sum(error**2 for error in errors) / 400) < 0.07 < 0.2
    assert len(few) <= MAX_POINTS and [2345, 1000.0] in few
    assert few == [list(point) for point in decimate([(at, value) for at, value in long])]


def figures(folder: Path, *charts: dict[str, Any]) -> list[str]:
    """Return the markup of figures, each with its probe in the middle, or at its ``share``."""
    usual = {"zero": False, "short": False, "marks": [], "logX": False, "scale": "auto", "many": False, "share": 0.5}
    usual |= {"title": "Loss", "unit": "nats"}
    over = "{ label: 'step', exact: true, show: whole }"
    made = f"((f) => {{ f.draw({{ ...chart, over: {over} }}); f.probe(chart.share); return f.node; }})"
    made = f"({made}(new Figure())).outerHTML"
    sources: list[str] = computed(f"{json.dumps([usual | chart for chart in charts])}.map((chart) => {made})", folder)
    assert not re.search(r"NaN|Infinity|undefined", "".join(sources))
    return sources


def line(points: list[list[float | None]], label: str = "loss", style: str = "train") -> dict[str, Any]:
    return {"label": label, "style": style, "points": points}


def test_a_line_starts_and_ends_where_its_values_are_and_breaks_at_a_gap(tmp_path: Path) -> None:
    points = [[1, 4], [2, 2], [3, None], [4, 1], [5, None], [6, 3], [7, 3]]
    (source,) = figures(tmp_path, {"lines": [line(points)], "zero": True, "marks": [[4, "resumed"]]})
    path, dot = (re.search(rf'<path d="([^"]*)" class="{name}"', source) for name in ("train", "train dot"))
    assert path and dot
    shapes = [re.sub(r"[\d.]+ [\d.]+", "p", found[1]) for found in (path, dot)]
    assert shapes == ["MpLpMpLp", "Mph0"]
    assert path[1].startswith("M0.0 ") and "L1000.0 " in path[1]
    assert source.count('class="mark"') == 1, "a mark, but one line needs no legend"
    assert 'aria-label="Loss over step. loss: first 4, last 3, least 1."' in source


def test_unusual_values_and_hostile_labels_are_drawn(tmp_path: Path) -> None:
    odd = [[3.0], [0.0], [-1.0, -1.0], [1e100, 1e-300], [5e-324, 1.0], [1e100, -1e100], [2e-320, 1e-320]]
    hostile = "<img src=x onerror=alert(1)>"
    charts = [{"lines": [line([[at, value] for at, value in enumerate(values)])]} for values in odd]
    both = [line([[1, 2], [2, 3]], label) for label in (hostile, "b")]
    *drawn, last = figures(tmp_path, *charts, {"lines": both, "title": hostile, "unit": hostile})
    assert all("<path" in source for source in drawn)
    assert "<img" not in last


def test_scales_are_chosen_and_forced(tmp_path: Path) -> None:
    lines = [line([[1, 9], [10, 3], [100, 2]])]
    chosen = [{"lines": lines, "scale": scale} for scale in ("auto", "linear", "log")]
    *found, across = figures(tmp_path, *chosen, {"lines": lines, "logX": True})
    assert ["nats, logarithmic" in source for source in found] == [True, False, True]
    assert "step, logarithmic" in across


def test_the_probe_shows_what_was_measured_at_its_step(tmp_path: Path) -> None:
    """In one run only there, but each validation can be found; the lines of several runs are read at one place."""
    train = line([[at, at / 100] for at in range(1, 1001)], "t")
    rare = [[train, line([[100, 7], [at, 8], [900, 9]], "v")] for at in (498, 450)]
    runs = [line([[10, 1], [50, 2], [90, 3]], "A"), line([[0, 4], [48, 5], [100, 6]], "B")]
    spike = line([[at, 70.0 if at == 500 else 1.0] for at in range(1, 1001)], "logged") | {"quiet": True}
    smoothed = line([[at, 1.5] for at in range(1, 1001)], "training") | {"fitted": True}
    near, far, many, both = figures(
        tmp_path,
        {"lines": rare[0]},
        {"lines": rare[1]},
        {"lines": runs, "many": True, "named": True},
        {"lines": [spike, smoothed]},
    )
    assert "<b>70</b>" in both and "<b>1.500</b>" in both, "what was logged, and the smoothed curve"
    assert "step 498" in near and "<b>8</b>" in near and "<b>4.980</b>" in near
    assert "step 500" in far and "<b>5</b>" in far and "<b>8</b>" not in far
    assert "<b>2</b>" in many
    assert "<b>\u2248 5.035</b>" in many, "between 5 and 6, on a logarithmic axis"


def test_of_several_runs_the_probe_reads_each_line_where_it_is_drawn(tmp_path: Path) -> None:
    a = line([[71_680, 6.52], [81_920, 6.42], [92_160, 6.321]], "A")
    b = line([[61_440, 7.0], [122_880, 6.0]], "B")  # crosses there, but has no point near
    gap = line([[61_440, 5.0], [70_000, None], [122_880, 5.0]], "C")
    ended = line([[10_240, 4.0], [51_200, 3.0]], "D")
    asked = {"lines": [a, b, gap, ended], "many": True, "named": True, "scale": "linear"}
    (source,) = figures(tmp_path, asked | {"share": 81_920 / 122_880})
    assert re.findall(r"<em>(\w)</em><b>([^<]*)</b>", source) == [("A", "6.420"), ("B", "\u2248 6.667")]
    dots = re.findall(r'<i class="train" style="left: ([\d.]+)%; bottom: ([\d.]+)%;">', source)
    assert len({left for left, _ in dots}) == 1 and len(dots) == 2
