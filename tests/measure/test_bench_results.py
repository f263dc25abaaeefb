import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import DataError
from hornbook.measure.bench_results import (
    compare_results,
    measures_of,
    read_results,
    run_bench,
    run_cases,
    spreads_of,
    write_results,
)
from hornbook.measure.bench_spec import Case

CASES = [Case(name=name, words=("step", name)) for name in ("a", "a/fast", "b")]


class Times:
    """Runs words: each time a little slower, ``a/fast`` in half the time; fails if configured to."""

    def __init__(self, *, fails_at: int = 0) -> None:
        self.order: list[str] = []
        self.fails_at = fails_at

    def __call__(self, words: Sequence[str]) -> dict[str, Any]:
        self.order.append(words[1])
        if len(self.order) == self.fails_at:
            return {"error": "exit code 1: no memory"}
        seconds = (1 + 0.01 * len(self.order)) * (0.5 if words[1] == "a/fast" else 1)
        return {"contenders": {"hornbook": {"step_seconds": seconds, "tokens_per_second": 100 / seconds}}}


def empty() -> dict[str, Any]:
    return {"name": "mine", "description": "two", "machine": {"cpu": "Test CPU"}, "cases": {}}


def test_cases_run_in_turn_and_only_what_is_missing_runs_again(tmp_path: Path) -> None:
    results, times, saved = empty(), Times(fails_at=5), []
    list(run_cases(CASES, 2, results, times, lambda: saved.append(len(times.order))))
    assert times.order == ["a", "a/fast", "b"] * 2 and saved == [1, 2, 3, 4, 5, 6]
    again = Times()
    ran = [(case.name, repeat, outcome) for case, repeat, outcome in run_cases(CASES, 3, results, again, lambda: None)]
    assert again.order == ["a/fast", "a", "a/fast", "b"], "the failed one, and the third repeat of all"
    assert [(name, repeat) for name, repeat, _ in ran] == [("a/fast", 1), ("a", 2), ("a/fast", 2), ("b", 2)]
    assert all("values" in outcome for _, _, outcome in ran)
    assert [run["repeat"] for run in results["cases"]["a/fast"]["runs"]] == [0, 1, 2]


def test_results_are_written_in_three_forms(tmp_path: Path) -> None:
    results = empty()
    list(run_cases(CASES, 3, results, Times(fails_at=3), lambda: write_results(tmp_path, results)))
    assert read_results(tmp_path) == results
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert len(rows) == 8 * 2 + 1 and rows[0]["case"] == "a" and float(rows[0]["value"]) == 1.01
    assert [row["error"] for row in rows if row["error"]] == ["exit code 1: no memory"]
    page = (tmp_path / "results.md").read_text()
    assert "| a | step_seconds | 3 | 1.040 | 1.025 to 1.055 |" in page
    assert "- failed: b, repeat 0: exit code 1: no memory" in page
    fast = next(row for row in spreads_of(results) if (row["case"], row["measure"]) == ("a/fast", "step_seconds"))
    assert 1.95 < fast["speedup"]["low"] < fast["speedup"]["ratio"] < fast["speedup"]["high"] < 2.05


def test_compared_results_say_faster_only_where_the_interval_shows_it() -> None:
    def results(**seconds: list[float]) -> dict[str, Any]:
        runs = {
            name: [
                {"repeat": at, "values": {"step_seconds": value, "tokens_per_second": 1 / value}}
                for at, value in enumerate(values)
            ]
            for name, values in seconds.items()
        }
        return empty() | {"cases": {name: {"words": [], "runs": found} for name, found in runs.items()}}

    a = results(same=[1.0, 1.1, 0.9], better=[1.0, 1.01, 0.99], once=[1.0], gone=[1.0])
    b = results(same=[1.05, 1.15, 0.9], better=[0.5, 0.51, 0.49], once=[2.0])
    verdicts = {(row["case"], row["measure"]): row["verdict"] for row in compare_results(a, b)}
    for measure in ("step_seconds", "tokens_per_second"):
        assert verdicts["same", measure] == "no difference shown"
        assert verdicts["better", measure] == "faster"
        assert verdicts["once", measure] == "one run: no interval"
    assert len(verdicts) == 6
    assert {row["verdict"] for row in compare_results(b, a) if row["case"] == "better"} == {"slower"}


def test_times_and_speeds_are_found_in_all_kinds_of_results() -> None:
    speed = {"step_seconds": 0.5, "tokens_per_second": 20.0}
    assert measures_of({"contenders": {"hornbook": speed, "hornbook native": speed}, "tflops": 3.0}) == {
        "step_seconds": 0.5,
        "tokens_per_second": 20.0,
        "hornbook native step_seconds": 0.5,
        "hornbook native tokens_per_second": 20.0,
    }
    assert measures_of({"num_ranks": 2, "together": speed, "alone": None, "ranks": [{"waiting": 0.5}]}) == speed
    rows = [{"batch_size": 8, "contender": "hornbook fp32", "first_token_seconds": 0.1, "token_seconds": None}]
    assert measures_of({"rows": rows}) == {"hornbook fp32 batch 8 first_token_seconds": 0.1}
    assert measures_of({"contenders": {"hornbook": {"seconds": 2.0, "tokens": 7}}}) == {"seconds": 2.0}


def test_a_process_that_a_signal_stopped_is_repeated() -> None:
    stopped = {"stopped": "by SIGTERM", "exit_code": 75}
    ((_, _, outcome),) = run_cases(CASES[:1], 1, empty(), lambda words: stopped, lambda: None)
    assert outcome["error"] == "by SIGTERM"


def test_a_refused_command_is_an_error_with_its_line() -> None:
    assert "no such bundled recipe" in run_bench(["step", "no-such-recipe"])["error"]


SOUND = {"name": "a", "description": "", "machine": {}, "cases": {"a": {"words": ["step"], "runs": [{"repeat": 0}]}}}
ODD_RUNS = [{}, {"repeat": "0"}, {"repeat": True}, {"repeat": 0, "values": []}, 5]
ODD_CASES = [[], {"a": 5}, {"a": {"runs": []}}, {"a": {"words": [1], "runs": []}}]
ODD_CASES += [{"a": {"words": [], "runs": [run]}} for run in ODD_RUNS]
ODD = [{}, [], 5, *({**SOUND, key: None} for key in SOUND), *({**SOUND, "cases": cases} for cases in ODD_CASES)]


def test_results_without_a_positive_value_have_no_row(tmp_path: Path) -> None:
    cases = {"a": {"words": [], "runs": [{"repeat": 0, "values": {"seconds": -1.0, "step_seconds": "x"}}]}}
    (tmp_path / "results.json").write_text(json.dumps({**SOUND, "cases": cases}))
    results = read_results(tmp_path)
    assert spreads_of(results) == []
    write_results(tmp_path, results)


@pytest.mark.parametrize("content", [json.dumps(content) for content in ODD])
def test_results_of_others_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(DataError, match="not written by `hornbook bench run`"):
        read_results(tmp_path)
