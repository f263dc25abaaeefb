from pathlib import Path

import pytest
from fake_run import RECIPE, make_run, train_row

from hornbook.track.curves import charts_of, run_labels
from hornbook.track.runs import RunFiles, read_run


def run(folder: Path, *, recipe: str = RECIPE, seconds: float = 1.0) -> RunFiles:
    """Steps 10 to 40, each tenth logged, and a validation between two of them."""
    rows = [train_row(step, seconds=step * seconds) for step in range(10, 41, 10)]
    rows.insert(3, {"kind": "validation", "step": 25, "loss": 2.5})
    return read_run(make_run(folder, recipe=recipe, rows=rows))


def test_a_validation_is_between_the_rows_around_it(tmp_path: Path) -> None:
    one = run(tmp_path / "one")
    for over, place in (("steps", 25.0), ("tokens", 25 * 1024.0), ("time", 25.0)):
        training, validation = charts_of([one], over)  # type: ignore[arg-type]
        assert validation.curves[0].points == [(place, 2.5)]
        assert [at for at, _ in training.curves[0].points] == pytest.approx(
            [place * step / 25 for step in (10, 20, 30, 40)]
        )


@pytest.mark.parametrize(
    ("seconds", "label", "last"),
    [(1.0, "seconds of training", 40.0), (60.0, "minutes of training", 40.0), (3600.0, "hours of training", 40.0)],
)
def test_a_time_has_a_suitable_unit(tmp_path: Path, seconds: float, label: str, last: float) -> None:
    chart = charts_of([run(tmp_path / "one"), run(tmp_path / "two", seconds=seconds)], "time")[0]
    assert chart.over == label
    assert chart.curves[1].points[-1][0] == last


def test_sessions_that_count_from_zero_follow_each_other(tmp_path: Path) -> None:
    rows = [train_row(10, seconds=5.0), train_row(20, seconds=8.0), train_row(30, seconds=2.0)]
    chart = charts_of([read_run(make_run(tmp_path / "run", rows=rows))], "time")[0]
    assert [place for place, _ in chart.curves[0].points] == [5.0, 8.0, 10.0]


def test_a_run_without_the_axis_has_no_curve_over_it(tmp_path: Path) -> None:
    rows = [{"kind": "train", "step": 1, "loss": 3.0}, {"kind": "validation", "step": 1, "loss": 3.0}]
    bare = read_run(make_run(tmp_path / "run", rows=rows))
    assert len(charts_of([bare], "steps")) == 2
    assert charts_of([bare], "tokens") == [] == charts_of([bare], "time")


def test_each_objective_has_charts_of_its_own(tmp_path: Path) -> None:
    one, two = run(tmp_path / "one"), run(tmp_path / "two", recipe=RECIPE.replace("causal_lm", "mlm"))
    found = [(chart.title, [curve.label for curve in chart.curves]) for chart in charts_of([one, two, one], "steps")]
    assert found == [
        ("Training loss of causal_lm", ["A", "C"]),
        ("Validation loss of causal_lm", ["A", "C"]),
        ("Training loss of mlm", ["B"]),
        ("Validation loss of mlm", ["B"]),
    ]


def test_labels_are_short_and_different() -> None:
    assert run_labels(3) == ["A", "B", "C"]
    assert len(set(run_labels(60))) == 60
