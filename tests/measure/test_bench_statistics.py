import itertools
import math
from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hornbook.measure.bench_results import Spread, paired, t_quantile, welch

SLEEP_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
"""Student's data of 1908, R's ``sleep``."""


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.70620), (1.5, 6.016663), (2, 4.302653), (4, 2.776445), (10, 2.228139), (30, 2.042272), (1e4, 1.960201)],
)
def test_quantiles_are_those_of_the_tables(freedom: float, expected: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(expected, rel=1e-5)


def test_intervals_are_those_of_r() -> None:
    """``t.test(extra ~ group, data = sleep)``, and the same paired; here of logarithms."""
    a, b = [math.exp(value) for value in SLEEP_1], [math.exp(value) for value in SLEEP_2]
    apart, together = welch(a, b), paired(a, b)
    assert apart.low and apart.high and together.low and together.high
    assert [math.log(x) for x in (apart.ratio, apart.low, apart.high)] == pytest.approx([1.58, -0.2054832, 3.3654832])
    assert [math.log(x) for x in (together.low, together.high)] == pytest.approx([0.7001142, 2.4598858])
    assert together.is_shown and not apart.is_shown, "the pairs show what the groups alone do not"


def test_one_number_has_no_interval_and_equal_ones_an_empty_one() -> None:
    assert welch([2.0], [3.0, 3.0]).low is None and paired([2.0], [3.0]).high is None
    assert paired([2.0], [3.0]).ratio == pytest.approx(1.5)
    same = welch([2.0, 2.0], [3.0, 3.0])
    assert (same.low, same.high) == pytest.approx((1.5, 1.5))


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=20))
@example([402653185.0, 134217727.49096711])  # the quantile 0.5 of numpy differs in the last bit
def test_the_bounds_of_a_spread_are_in_order(values: list[float]) -> None:
    spread = Spread.of(values)
    ordered = [spread.least, spread.lower_quartile, spread.median, spread.upper_quartile, spread.greatest]
    assert all(low <= high * (1 + 1e-12) for low, high in itertools.pairwise(ordered))
    assert (spread.num, spread.median) == (len(values), median(values))


def test_quartiles_are_interpolated() -> None:
    spread = Spread.of([1.0, 2.0, 3.0, 4.0])
    assert (spread.lower_quartile, spread.upper_quartile) == (1.75, 3.25)
