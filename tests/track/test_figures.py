import math
from pathlib import Path

import pytest
from fake_run import make_run, train_row

from hornbook.track.charts import MAX_POINTS
from hornbook.track.figures import NUM_COLORS, NUM_MEANS, curves_of, figures_of, line_styles, series_of
from hornbook.track.runs import read_run


def task_row(step: int, task: str, metric: str, value: float) -> dict[str, object]:
    return {"kind": "task", "step": step, "task": task, "metric": metric, "value": value}


def test_only_lines_with_a_value_are_drawn(tmp_path: Path) -> None:
    rows = [train_row(1, learning_rate=None, mfu=float("nan")), train_row(2, learning_rate=None)]
    rows += [task_row(2, "a/b", "accuracy", 0.5), task_row(2, "a/b", "perplexity", 9.0)]
    rows += [{"kind": "validation", "step": 2, "loss": 3.0, "loss/wiki": 3.5, "bits_per_byte": None}]
    figures = figures_of(read_run(make_run(tmp_path / "run", rows=rows)))
    assert {figure.title: [line.key for line in figure.lines] for figure in figures} == {
        "Loss": ["train/loss", "validation/loss"],
        "Gradient norm": ["train/gradient_norm"],
        "Speed": ["train/tokens_per_second"],
        "Validation loss, wiki": ["validation/loss/wiki"],
        "a/b": ["task/a/b/accuracy"],
    }


def test_the_last_row_of_a_step_counts_and_gaps_stay(tmp_path: Path) -> None:
    rows = [train_row(1), train_row(2, loss=9.0), train_row(3, loss=float("nan")), train_row(2, loss=5.0)]
    run = read_run(make_run(tmp_path / "run", rows=rows))
    series = series_of(run.rows, figures_of(run))
    assert series["train/loss"]["points"] == [(1, 8.0), (2, 5.0), (3, None)]


def test_later_rows_alone_are_sent_as_they_are(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", rows=[train_row(step) for step in range(1, 4001)]))
    whole = curves_of(run, label="A", number=0)
    assert len(whole["series"]["train/loss"]["points"]) <= MAX_POINTS
    means = whole["series"]["train/loss"]["means"]
    assert len(means) == NUM_MEANS and means[0] == pytest.approx(
        (2.5, 2 + 6 * (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4), abs=0.05
    )
    later = curves_of(run, label="A", number=0, since=10)
    assert (later["from"], later["at"]) == (10, 4000)
    points = later["series"]["train/loss"]["points"]
    assert len(points) == 3990 and points[0] == (11, pytest.approx(2 + 6 / 11))
    assert all(math.isfinite(value) for _, value in points) and "means" not in later["series"]["train/loss"]


def test_a_style_stays_and_dashes_are_left_for_colors_that_are_free() -> None:
    assert line_styles([None] * 10) == list(range(10)), "from NUM_COLORS on with dashes"
    assert line_styles([2, None, 0, None]) == [2, 1, 0, 3]
    assert line_styles([9, 3]) == [0, 3], "a solid line is free"
    assert line_styles([*range(NUM_COLORS), 9, 8])[NUM_COLORS:] == [9, 8]
