"""Run benchmarks, each repeat in a separate process with cases alternating, and store and compare the results.

::

    results.json    {"name", "machine", "cases": {"NAME/VARIANT": {"words": [...], "runs": [{"repeat": 0,
                     "started": ..., "values": {"tokens_per_second": 20811.3, ...}}, ...]}}}
    results.csv     a line for each number
    results.md      medians and spreads, and variants compared with the first

The files are rewritten atomically after every process, so that an interrupted run keeps its results; the same command
continues it. Each number comes from a separate process, since memory layout, clock rate and other load vary more
between processes than within one (Kalibera and Jones, "Rigorous benchmarking in reasonable time", ISMM 2013).

Times are compared by the ratio of their geometric means, that is by differences of logarithms, with 95 % intervals:

- ``welch``: for two independent sets of runs. Welch's t interval with Satterthwaite's degrees of freedom (Welch, "The
  generalization of Student's problem when several different population variances are involved", Biometrika 34, 1947).
- ``paired``: for alternating variants, whose i-th runs had the same state of the machine. Student's t interval of the
  differences.
"""

import csv
import datetime
import io
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median, variance
from typing import Any

import numpy as np

from hornbook.errors import DataError
from hornbook.measure.bench_spec import Case
from hornbook.storage.files import replace_file
from hornbook.storage.json_files import dump_json, read_json
from hornbook.track.units import number, significant
from hornbook.wording import one_line

RESULTS = "results.json"
_MEASURES = ("seconds", "per_second")
Results = dict[str, Any]
Run = Callable[[Sequence[str]], dict[str, Any]]
"""Runs ``hornbook bench`` with the given words and returns its JSON, or ``{"error": ...}``."""
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The ratio of two sets of numbers and its 95 % interval, None with fewer than two numbers."""

    ratio: float
    low: float | None
    high: float | None

    @property
    def is_shown(self) -> bool:
        """Whether the interval excludes 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


@dataclass(frozen=True)
class Spread:
    """Summary of the numbers of several processes: median, quartiles, minimum and maximum."""

    num: int
    least: float
    lower_quartile: float
    median: float
    upper_quartile: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarize one or more numbers; quartiles are interpolated linearly (type 7 of Hyndman and Fan)."""
        least, lower, upper, greatest = np.quantile(values, (0, 0.25, 0.75, 1)).tolist()
        return cls(len(values), least, lower, median(values), upper, greatest)


def run_cases(
    cases: Sequence[Case], repeats: int, results: Results, run: Run, save: Callable[[], None]
) -> Iterator[tuple[Case, int, dict[str, Any]]]:
    """Run the repeats that are missing in the results, alternating between cases; yield each case that ran.

    Args:
        cases: to run.
        repeats: number of runs of each case.
        results: runs of earlier calls, to which new ones are added; failed runs are repeated.
        run: runs the words of a case.
        save: called after every run.
    """
    for repeat in range(repeats):
        for case in cases:
            runs = results["cases"].setdefault(case.name, {"words": list(case.words), "runs": []})["runs"]
            if any(done["repeat"] == repeat and "values" in done for done in runs):
                continue
            started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            answer = run(case.words)
            problem = answer.get("error") or answer.get("stopped")
            outcome = {"error": problem} if problem else {"values": measures_of(answer)}
            runs[:] = sorted(
                [done for done in runs if done["repeat"] != repeat]
                + [{"repeat": repeat, "started": started, **outcome}],
                key=lambda done: done["repeat"],
            )
            save()
            yield case, repeat, runs[repeat if len(runs) > repeat else -1]


def run_bench(words: Sequence[str]) -> dict[str, Any]:
    """Run ``hornbook bench`` in a separate process and return its JSON, or ``{"error": its last line}``.

    The JSON has the key ``error`` or ``stopped`` if the process failed or was stopped.
    """
    command = [sys.executable, "-m", "hornbook", "bench", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    lines = done.stdout.splitlines() or [""]
    try:
        answer = json.loads(lines[-1])
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return {"error": f"exit code {done.returncode}: {one_line(said)}"}
    return answer


def measures_of(answer: Mapping[str, Any]) -> dict[str, float]:
    """Return the times and speeds of a result of ``hornbook bench``, by name.

    ``{"contenders": {"hornbook": {"step_seconds": 0.1}, "hornbook native": {"step_seconds": 0.2}}}`` ->
    ``{"step_seconds": 0.1, "hornbook native step_seconds": 0.2}``; names of rows have the contender and batch size.
    """
    found: dict[str, float] = {}

    def collect(part: Mapping[str, Any], label: str) -> None:
        for key, value in part.items():
            measured = number(part, key)
            if key.endswith(_MEASURES) and measured is not None and measured > 0:
                found[f"{label}{key}"] = measured
            elif isinstance(value, dict):
                collect(value, label if key in ("contenders", "hornbook", "together") else f"{label}{key} ")
            elif key == "rows" and isinstance(value, list):
                for row in value:
                    collect(row, f"{label}{row.get('contender')} batch {row.get('batch_size')} ")

    collect(answer, "")
    return found


def read_results(folder: Path) -> Results:
    """Return the results in a folder.

    Raises:
        DataError: the results do not exist or are malformed.
    """
    results = read_json(folder / RESULTS, "results of `hornbook bench run`")
    if not _are_results(results):
        raise DataError(f"{folder / RESULTS}: not written by `hornbook bench run`; name its `output` folder")
    return dict(results)


def _are_results(found: Any) -> bool:
    """Return whether a parsed file has the parts of results that are read."""
    return _has(found, name=str, description=str, machine=dict, cases=dict) and all(
        _has(case, words=list, runs=list)
        and all(isinstance(word, str) for word in case["words"])
        and all(_has(run, repeat=int) and isinstance(run.get("values", {}), dict) for run in case["runs"])
        for case in found["cases"].values()
    )


def _has(found: Any, **kinds: type) -> bool:
    return isinstance(found, dict) and all(type(found.get(key)) is kind for key, kind in kinds.items())


def write_results(folder: Path, results: Results) -> None:
    """Write ``results.json``, ``results.csv`` and ``results.md``, each atomically."""
    replace_file(folder / RESULTS, dump_json(results))
    replace_file(folder / "results.csv", _csv(results).encode())
    replace_file(folder / "results.md", _markdown(results).encode())


def values_of(results: Results, case: str, measure: str) -> dict[int, float]:
    """Return the values of a measure of a case, by repeat."""
    runs = results["cases"][case]["runs"]
    found = ((run["repeat"], number(run.get("values", {}), measure)) for run in runs)
    return {repeat: value for repeat, value in found if value is not None and value > 0}


def measures_in(results: Results, case: str) -> list[str]:
    """Return the names of the measures of a case, in order."""
    return list(dict.fromkeys(name for run in results["cases"][case]["runs"] for name in run.get("values", {})))


def spreads_of(results: Results) -> list[dict[str, Any]]:
    """Return a row for each case and measure: its spread and, for variants, the speedup over the first variant."""
    rows = []
    for case in results["cases"]:
        for measure in measures_in(results, case):
            if not (values := values_of(results, case, measure)):
                continue
            base, _, variant = case.partition("/")
            speedup = _against(results, base, case, measure) if variant and base in results["cases"] else None
            row = {"case": case, "measure": measure, **asdict(Spread.of(list(values.values())))}
            rows.append(row | {"speedup": None if speedup is None else asdict(speedup)})
    return rows


def _against(results: Results, base: str, case: str, measure: str) -> Ratio | None:
    ours, theirs = (values_of(results, name, measure) for name in (base, case))
    both = [repeat for repeat in ours if repeat in theirs]
    if not both:
        return None
    return speedup_of(paired([ours[repeat] for repeat in both], [theirs[repeat] for repeat in both]), measure)


def compare_results(a: Results, b: Results) -> list[dict[str, Any]]:
    """Return a row for each case and measure in both results: the medians, and the speedup of B (Welch)."""
    rows = []
    for case in a["cases"]:
        if case not in b["cases"]:
            continue
        for measure in measures_in(a, case):
            first, second = (list(values_of(results, case, measure).values()) for results in (a, b))
            if first and second:
                medians = {"a": Spread.of(first).median, "b": Spread.of(second).median}
                speedup = speedup_of(welch(first, second), measure)
                compared = {"speedup": asdict(speedup), "verdict": verdict(speedup)}
                rows.append({"case": case, "measure": measure, **medians, **compared})
    return rows


def speedup_of(ratio: Ratio, measure: str) -> Ratio:
    """Return the ratio, inverted for times, so that more than 1 is faster for all measures."""
    if measure.endswith("per_second"):
        return ratio
    turned = [None if value is None else 1 / value for value in (ratio.high, ratio.low)]
    return Ratio(ratio=1 / ratio.ratio, low=turned[0], high=turned[1])


def verdict(speedup: Ratio) -> str:
    """Return the conclusion from the interval: faster, slower, or no difference shown."""
    if speedup.low is None:
        return "one run: no interval"
    return ("faster" if speedup.ratio > 1 else "slower") if speedup.is_shown else "no difference shown"


def show_ratio(ratio: Mapping[str, Any] | None) -> str:
    """Return a ratio as text: ``1.08 (1.05 to 1.11)``."""
    if ratio is None:
        return ""
    interval = "" if ratio["low"] is None else f" ({ratio['low']:.3f} to {ratio['high']:.3f})"
    return f"{ratio['ratio']:.3f}{interval}"


def _csv(results: Results) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["case", "repeat", "started", "measure", "value", "error"])
    for name, case in results["cases"].items():
        for run in case["runs"]:
            start = [name, run["repeat"], run.get("started", "")]
            for measure, value in run.get("values", {}).items():
                writer.writerow([*start, measure, repr(value), ""])
            if "error" in run:
                writer.writerow([*start, "", "", run["error"]])
    return file.getvalue()


def _markdown(results: Results) -> str:
    machine = results["machine"]
    facts = ", ".join(str(machine[key]) for key in ("cpu", "platform") if machine.get(key))
    lines = [f"# {results['name']}", "", results["description"], ""]
    lines += [f"On {facts}; hornbook {machine.get('hornbook')}.", ""]
    head = "| case | measure | processes | median | quartiles | least to greatest | times as fast as the first (95 %) |"
    lines += [head, f"|{'---|' * 7}"]
    for row in spreads_of(results):
        numbers = (
            str(row["num"]),
            significant(row["median"], 4),
            f"{significant(row['lower_quartile'], 4)} to {significant(row['upper_quartile'], 4)}",
            f"{significant(row['least'], 4)} to {significant(row['greatest'], 4)}",
            show_ratio(row["speedup"]),
        )
        lines.append(f"| {' | '.join((row['case'], row['measure'], *numbers))} |")
    failed = [(name, run) for name, case in results["cases"].items() for run in case["runs"] if "error" in run]
    lines += ["", *(f"- failed: {name}, repeat {run['repeat']}: {run['error']}" for name, run in failed)]
    return "\n".join(lines).rstrip() + "\n"


def welch(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Return the ratio of ``b`` to ``a``, positive numbers that were measured independently."""
    log_a, log_b = [math.log(value) for value in a], [math.log(value) for value in b]
    difference = fmean(log_b) - fmean(log_a)
    if min(len(a), len(b)) < 2:
        return Ratio(ratio=math.exp(difference), low=None, high=None)
    parts = [(variance(values) / len(values), len(values) - 1) for values in (log_a, log_b)]
    total = sum(part for part, _ in parts)
    if total == 0:
        return Ratio(ratio=math.exp(difference), low=math.exp(difference), high=math.exp(difference))
    freedom = total**2 / sum(part**2 / degrees for part, degrees in parts)
    return _around(difference, math.sqrt(total), freedom)


def paired(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Return the ratio of ``b`` to ``a``, positive numbers whose i-th values were measured one after the other."""
    differences = [math.log(later / earlier) for earlier, later in zip(a, b, strict=True)]
    if len(differences) < 2:
        return Ratio(ratio=math.exp(fmean(differences)), low=None, high=None)
    return _around(fmean(differences), math.sqrt(variance(differences) / len(differences)), len(differences) - 1)


def _around(difference: float, error: float, freedom: float) -> Ratio:
    reach = t_quantile((1 + CONFIDENCE) / 2, freedom) * error
    return Ratio(ratio=math.exp(difference), low=math.exp(difference - reach), high=math.exp(difference + reach))


def t_quantile(share: float, freedom: float) -> float:
    """Return the quantile ``share`` > 0.5 of Student's t distribution with ``freedom`` >= 1 degrees of freedom.

    The density over the angle atan(t / sqrt(freedom)) is a power of the cosine, summed by the trapezoidal rule.
    """
    angles = np.linspace(0, math.pi / 2, 1 << 17)
    heights = np.cos(angles) ** (freedom - 1)
    areas = np.cumsum(heights) - (heights[0] + heights) / 2
    return math.sqrt(freedom) * math.tan(np.interp((2 * share - 1) * areas[-1], areas, angles))
