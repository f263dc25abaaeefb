import pytest

from hornbook.track.charts import Point
from hornbook.track.curves import Chart, Curve
from hornbook.track.terminal_chart import draw


def lines(*curves: list[Point], width: int = 60, unicode: bool = True) -> list[str]:
    named = [Curve(label="ABCDEFGHIJ"[at], number=at, points=points) for at, points in enumerate(curves)]
    chart = Chart(title="Loss", unit="nats", over="step", curves=named)
    return [line.plain for line in draw(chart, width, unicode=unicode)]


def dots(line: str) -> int:
    return sum(bin(ord(sign) - 0x2800).count("1") for sign in line if 0x2800 <= ord(sign) < 0x2900)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_chart_has_the_width_that_it_is_given(width: int) -> None:
    drawn = lines([(0.0, 9.0), (100.0, 1.0)], [(0.0, 8.0), (50.0, 1.0)], width=width)
    assert max(map(len, drawn)) == width
    assert drawn[0] == "Loss (nats, logarithmic)"
    assert drawn[-1].strip() == "step"


def test_a_falling_line_goes_from_the_upper_left_to_the_lower_right() -> None:
    drawn = lines([(0.0, 3.0), (100.0, 2.0)])[1:13]
    left = [min(at for at, sign in enumerate(line) if dots(sign)) for line in drawn if dots(line)]
    assert left == sorted(left) and len(left) >= 10
    assert [at for at, line in enumerate(drawn) if line.endswith(" A")] == [
        at for at, line in enumerate(drawn) if dots(line)
    ][-1:]


def test_a_gap_is_not_bridged_and_a_lone_point_is_a_dot() -> None:
    whole = sum(map(dots, lines([(0.0, 2.0), (50.0, 2.0), (100.0, 2.0)])))
    gap = sum(map(dots, lines([(0.0, 2.0), (50.0, None), (100.0, 2.0)])))
    assert gap == 2 < whole


def test_curves_that_end_together_are_both_named() -> None:
    drawn = lines([(0.0, 3.0), (10.0, 2.0)], [(0.0, 2.5), (10.0, 2.0)])
    assert [line for line in drawn if line.endswith(" AB")]


def test_letters_replace_dots_where_braille_cannot_be_written() -> None:
    drawn = lines([(0.0, 3.0), (10.0, 2.0)], [(0.0, 2.0), (10.0, 3.0)], unicode=False)
    assert all(line.isascii() for line in drawn)
    assert sum(line.count("A") for line in drawn) > 5 < sum(line.count("B") for line in drawn)


@pytest.mark.parametrize("value", [0.0, 1e-300, 1e100, -5.0])
def test_unusual_values_are_drawn(value: float) -> None:
    assert sum(map(dots, lines([(0.0, value)]))) == 1
    assert sum(map(dots, lines([(0.0, value), (1.0, 1.0)]))) > 1
