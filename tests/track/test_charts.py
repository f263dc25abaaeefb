import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.track import charts
from hornbook.track.charts import MAX_POINTS, Axis, decimate, x_axis, y_axis


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


def test_a_wide_span_gets_a_logarithmic_axis_and_a_narrow_one_does_not() -> None:
    spans = ([9.0, 3.0, 2.0], [3.0, 2.0], [9.0, 0.0, -5.0], [3.0, None])
    axes = [y_axis([[(float(at), value) for at, value in enumerate(values)]]) for values in spans]
    assert [axis.logarithmic for axis in axes] == [True, False, False, False]
    assert all(axis.low < axis.high for axis in axes)


def test_the_horizontal_axis_begins_at_zero_where_the_points_begin_near_it() -> None:
    assert x_axis([[(10.0, 1.0), (200.0, None)]]).low == 0
    assert x_axis([[(50.0, 1.0), (200.0, 1.0)]]).low == 50
    assert x_axis([[(5.0, 1.0)]]).place(5.0) == 0.5
