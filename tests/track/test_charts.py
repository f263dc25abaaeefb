import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.track import charts
from hornbook.track.charts import MAX_POINTS, Axis, Series, XAxis, decimate, line_chart, smooth
from hornbook.track.page import STYLE_SHEET


def series(*values: float | None, style="train", label="loss") -> Series:
    return Series(label=label, style=style, points=[(10.0 * at, value) for at, value in enumerate(values, start=1)])


def paths(figure: str) -> list[tuple[str, str]]:
    return [(style, drawn) for drawn, style in re.findall(r'<path d="([^"]*)" class="([^"]*)"', figure)]


def num_points(drawn: str) -> int:
    return len(re.findall(r"[ML]", drawn))


@pytest.mark.parametrize("num_points", [2, 1499, 1500, 1501, 1502, 3001, 100_000])
def test_decimate_keeps_limit_order_ends_and_extremes(num_points: int) -> None:
    rnd = random.Random(num_points)
    points = [(float(step), rnd.gauss(0, 1)) for step in range(num_points)]
    kept = decimate(points)
    assert len(kept) <= MAX_POINTS
    assert len(kept) >= min(num_points, MAX_POINTS // 2)
    assert kept == sorted(kept)
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    values, kept_values = [value for _, value in points], [value for _, value in kept]
    assert max(kept_values) == max(values)
    assert min(kept_values) == min(values)


def test_decimate_keeps_a_spike_of_one_step_and_a_gap() -> None:
    points: list[charts.Point] = [(float(step), 1.0) for step in range(50_000)]
    points[31_415] = (31_415.0, 99.0)
    points[10_000:11_000] = [(float(step), None) for step in range(10_000, 11_000)]
    kept = decimate(points)
    assert (31_415.0, 99.0) in kept
    assert any(value is None and 10_000 <= step < 11_000 for step, value in kept)


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=60), st.integers(3, 30))
def test_decimate_never_exceeds_its_limit(values: list[float | None], limit: int) -> None:
    points = [(float(step), value) for step, value in enumerate(values)]
    kept = decimate(points, limit)
    assert len(kept) <= max(limit, 4)
    assert set(kept) <= set(points)


def test_smooth_leaves_a_straight_line_alone_even_at_its_ends() -> None:
    points = [(float(step), 3.0 - 0.01 * step) for step in range(300)]
    assert smooth(points) == [(step, pytest.approx(value, abs=1e-9)) for step, value in points]


def test_smooth_quietens_noise_and_passes_over_gaps() -> None:
    rnd = random.Random(5)
    points: list[charts.Point] = [(float(step), 2.0 + rnd.gauss(0, 0.1)) for step in range(1000)]
    points[500] = (500.0, None)
    found = smooth(points)
    assert [step for step, _ in found] == [step for step, _ in points]
    assert found[500] == (500.0, None)
    assert all(abs(value - 2.0) < 0.06 for _, value in found[100:] if value is not None)


def test_smooth_takes_few_points_and_stays_exact_on_many() -> None:
    assert smooth([]) == []
    assert smooth([(1.0, 5.0)]) == [(1.0, 5.0)]
    assert smooth([(1.0, None), (2.0, 4.0)]) == [(1.0, None), (2.0, 4.0)]
    points = [(float(step), 1.0) for step in range(200_000)]
    found = smooth(points)
    assert len(found) == 1000
    assert max(abs(value - 1.0) for _, value in found if value is not None) < 1e-9


def test_a_spike_spoils_the_smoothed_curve_only_around_it() -> None:
    points = [(float(step), 1e38 if step == 50 else 2.0) for step in range(5000)]
    found = smooth(points)
    assert [value for _, value in found[100:]] == pytest.approx([2.0] * 900)


@pytest.mark.parametrize(
    ("low", "high", "logarithmic", "expected"),
    [
        (0, 100, False, [0, 20, 40, 60, 80, 100]),
        (0, 0.003, False, [0, 0.001, 0.002, 0.003]),
        (2, 9, True, [2, 3, 5, 7]),
        (1, 1000, True, [1, 10, 100, 1000]),
        (1e-9, 1e9, True, None),
        (2.9, 3.0, False, [2.9, 2.92, 2.94, 2.96, 2.98, 3.0]),
    ],
)
def test_ticks_are_round_and_few(low: float, high: float, logarithmic: bool, expected: list[float] | None) -> None:
    ticks = Axis(low=low, high=high, logarithmic=logarithmic).ticks(5)
    assert 2 <= len(ticks) <= 9
    assert all(low * (1 - 1e-9) <= tick <= high * (1 + 1e-9) for tick in ticks)
    if expected is not None:
        assert ticks == pytest.approx(expected)


@given(st.floats(1e-12, 1e12), st.floats(1.01, 1e9), st.booleans())
def test_ticks_exist_for_every_axis(low: float, factor: float, logarithmic: bool) -> None:
    ticks = Axis(low=low, high=low * factor, logarithmic=logarithmic).ticks(5)
    assert len(ticks) <= 20
    assert ticks == sorted(ticks)


@pytest.mark.parametrize("logarithmic", [False, True])
def test_an_axis_places_its_ends_at_0_and_1_and_clips(logarithmic: bool) -> None:
    axis = Axis(low=1, high=100, logarithmic=logarithmic)
    assert [axis.place(value) for value in (0.001, 1, 100, 1e9)] == [0, 0, 1, 1]
    assert axis.place(10) == pytest.approx(0.5 if logarithmic else 9 / 99)


def test_a_chart_without_values_is_nothing() -> None:
    assert line_chart("Loss", [], unit="nats") == ""
    assert line_chart("Loss", [series(None, None)], unit="nats") == ""


def test_a_wide_span_gets_a_logarithmic_axis_and_a_narrow_one_does_not() -> None:
    assert "nats, logarithmic" in line_chart("Loss", [series(9.0, 3.0, 2.0)], unit="nats")
    assert "logarithmic" not in line_chart("Loss", [series(3.0, 2.0)], unit="nats")
    assert "logarithmic" not in line_chart("Loss", [series(9.0, 1.0)], unit="nats", from_zero=True)
    assert "logarithmic" not in line_chart("Loss", [series(9.0, 0.0, -5.0)], unit="nats")


def test_lines_start_and_end_where_the_values_are() -> None:
    figure = line_chart("Loss", [series(0.0, 4.0, 2.0)], unit="nats", from_zero=True)
    [(_, drawn)] = paths(figure)
    places = [tuple(map(float, place.split())) for place in re.split(r"[ML]", drawn)[1:]]
    assert [x for x, _ in places] == [0.0, 500.0, 1000.0]
    bottom, top, middle = (y for _, y in places)
    assert bottom == 500.0
    assert top < middle < bottom


def test_a_gap_breaks_the_line_and_a_lone_point_is_a_dot() -> None:
    figure = line_chart("Loss", [series(3.0, 2.9, None, 2.5, None, 2.4, 2.3)], unit="nats")
    drawn = dict(paths(figure))
    assert drawn["train"].count("M") == 2
    assert num_points(drawn["train"]) == 4
    assert drawn["train dot"].endswith("h0")


def test_a_point_that_is_all_there_is_has_a_marker() -> None:
    """One validation at the end of a run: the rule for its size has to come behind the one for its line."""
    one = Series(label="validation", style="validation", points=[(3, 2.5)])
    drawn = dict(paths(line_chart("Loss", [series(3.0, 2.9, 2.8), one], unit="nats")))
    assert set(drawn) == {"train", "validation dot lone"}
    rules = [STYLE_SHEET.read_text().index(f".plot path.{name} {{") for name in ("validation", "dot", "dot.lone")]
    assert rules == sorted(rules)


@pytest.mark.parametrize(("top", "longest"), [(1e-3, "0.00075"), (2.0, "1.5")])
def test_labels_have_the_room_that_they_take(top: float, longest: str) -> None:
    figure = line_chart("Rate", [series(0.0, top)], unit="nats", from_zero=True)
    assert f">{longest}</span>" in figure
    assert f"margin-left:max(3.1rem, {0.8 * len(longest):.1f}ch + .7rem)" in figure


@pytest.mark.parametrize(
    "values",
    [[3.0], [3.0, 3.0], [0.0], [-1.0, -1.0], [1e100, 1e-300], [5e-324, 1.0], [1e100, -1e100], [2e-320, 1e-320]],
)
def test_odd_values_are_drawn_without_a_fault(values: list[float]) -> None:
    for from_zero in (False, True):
        figure = line_chart("Loss", [series(*values)], unit="nats", from_zero=from_zero)
        assert "<path" in figure
        assert not re.search(r"\b(nan|inf)\b", figure.replace("nats", ""))


def test_a_long_series_is_drawn_with_few_points_and_probes() -> None:
    long = Series(label="loss", style="raw", points=[(float(step), 2 + math.sin(step)) for step in range(40_000)])
    figure = line_chart("Loss", [long], unit="nats")
    [(_, drawn)] = paths(figure)
    assert num_points(drawn) <= MAX_POINTS
    assert len(figure) < 60_000


def test_marks_inside_the_axis_are_drawn_and_named() -> None:
    figure = line_chart(
        "Loss",
        [series(3.0, 2.0), series(3.1, 2.1, style="validation", label="validation")],
        unit="nats",
        marks=[(15.0, "resumed"), (99.0, "resumed")],
    )
    assert [style for style, _ in paths(figure)].count("mark") == 1
    assert figure.count("resumed") == 1


def test_the_legend_can_be_left_out() -> None:
    lines = [series(3.0, 2.0), series(3.1, 2.1, style="validation", label="validation")]
    assert "<li" in line_chart("Loss", lines, unit="nats")
    assert "<li" not in line_chart("Loss", lines, unit="nats", legend=False)


def test_probes_show_only_what_was_measured_at_their_step() -> None:
    lines = [series(3.0, 2.5, 2.0), Series(label="validation", style="validation", points=[(30.0, 2.2)])]
    figure = line_chart("Loss", lines, unit="nats")
    assert "<b>step 20 <em>loss</em> 2.50</b>" in figure
    assert "<b>step 30 <em>loss</em> 2<em>validation</em> 2.20</b>" in figure
    assert figure.count("validation</em>") == figure.count("step 30 ") > 0


def test_every_validation_can_be_found_among_many_steps() -> None:
    train = Series(label="training", style="train", points=[(10.0 * at, 3.0) for at in range(1, 1001)])
    steps = range(250, 10_001, 250)
    held_out = Series(label="validation", style="validation", points=[(float(step), 2.0) for step in steps])
    figure = line_chart("Loss", [train, held_out], unit="nats")
    shown = re.findall(r"<b>step ([\d,]+) <em>training</em> 3<em>validation</em> 2</b>", figure)
    assert list(dict.fromkeys(int(step.replace(",", "")) for step in shown)) == list(steps)
    assert figure.count("validation</em>") == len(shown)


def test_a_fitted_curve_has_values_between_its_ends_and_none_beyond() -> None:
    fitted = Series(label="smoothed", style="train", points=[(15.0, 5.0), (25.0, 4.0)], fitted=True)
    figure = line_chart("Loss", [series(3.0, 2.5, 2.0), fitted], unit="nats")
    assert "<b>step 20 <em>loss</em> 2.50<em>smoothed</em> 5</b>" in figure
    assert "<b>step 30 <em>loss</em> 2</b>" in figure


def test_over_time_values_within_a_band_stand_together() -> None:
    lines = [
        Series(label=label, style=label, points=[(at + offset, 3.0) for at in range(100)])
        for label, offset in (("run0", 0.0), ("run1", 0.3))
    ]
    minutes = XAxis(name="minutes", label="minutes", show=str)
    figure = line_chart("Loss", lines, unit="nats", over=minutes)
    assert figure.count("<em>run0</em> 3<em>run1</em> 3") > 90
    assert 'aria-label="Loss over minutes.' in figure


def test_the_smoothed_curve_ends_as_calmly_as_it_runs() -> None:
    """Fewer neighbors at the end made the last points of a flat, noisy curve turn up or down."""
    ends, middles = [], []
    for seed in range(300):
        rnd = random.Random(seed)
        found = [value or 0.0 for _, value in smooth([(float(step), rnd.gauss(0, 1)) for step in range(200)])]
        ends.append(found[-1])
        middles.append(found[100])
    spread = math.sqrt(sum(end * end for end in ends) / len(ends))
    assert spread < 0.65, "about the root of 4 / 11: a line fitted to 11 points, at its end; fewer points gave 0.7"
    assert math.sqrt(sum(middle * middle for middle in middles) / len(middles)) < 0.35


def test_the_chart_is_told_in_words() -> None:
    assert 'aria-label="Loss over steps. loss: first 3, last 2, least 1.50."' in line_chart(
        "Loss", [series(3.0, 1.5, 2.0)], unit="nats"
    )


def test_labels_are_escaped() -> None:
    lines = [series(1.0, label="<b>"), series(2.0, label='"', style="validation")]
    figure = line_chart("<i>", lines, unit="<u>", marks=[(10.0, "<s>")])
    assert not re.search(r"<(b>&|u>|s>)", figure.replace("<b>step", ""))
    assert "&lt;i&gt;" in figure
