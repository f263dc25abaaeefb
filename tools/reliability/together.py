"""Two jobs at the same time on one folder, one output or one scratch folder; clocks that jump; and a soak.

Of two jobs with one output, at least one must end well, with the result of a job that was alone, and the other may be
refused in one line. The soak resumes a run with `hornbook.train` again and again in one process: descriptors and
threads stay as many, and memory grows by at most ``_SLOPE`` an hour, by the least-squares line of its second half.
"""

import contextlib
import io
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
from resources import Answer, assert_one_line, expected_of, prepare, result_of, run_command
from small_runs import digest, train_small
from trials import Part, Trial, fork, in_child

import hornbook

_YEARS = 10 * 365 * 86400.0
_SLOPE = 1 << 20
"""Bytes an hour."""
_TWO_HOURS = 7200.0


def _prepare(shared: Path) -> None:
    prepare(shared)
    for kind in ("GPT fp32", "GPT phased"):
        _, problem = in_child(partial(train_small, kind, shared / "whole" / kind / "run"), shared / "log")
        assert problem is None, problem


def _compete(trial: Trial, name: str) -> None:
    """Run the same command twice, with the same output, at almost the same time."""
    disk = trial.folder / "disk"
    shutil.copytree(trial.shared / "before", disk)
    answers: list[Answer] = _at_once(trial, *[partial(run_command, name, disk)] * 2)
    for code, said, left in answers:
        assert_one_line(code, said)
        assert not left, f"left open: {left}"
    assert any(code == 0 for code, _, _ in answers), f"both failed: {answers}"
    assert result_of(name, disk) == expected_of(trial, name), "two jobs together have another result than one"


def _share_scratch(trial: Trial) -> None:
    """Train two phased runs whose files are in the same folder."""
    runs = [trial.folder / number / "run" for number in ("one", "two")]
    (trial.folder / "scratch").mkdir()
    option = f"--memory.scratch={trial.folder / 'scratch'}"
    _at_once(trial, *(partial(train_small, "GPT phased", run, option) for run in runs))
    for run in runs:
        assert digest(run) == digest(trial.shared / "whole" / "GPT phased" / "run"), "another result than alone"
    assert not list((trial.folder / "scratch").iterdir()), "files are left in the scratch folder"


def _at_once(trial: Trial, first: Callable[[], object], second: Callable[[], object]) -> list[Answer]:
    """Run two actions in processes of their own, the second a moment after the first; return what they returned."""
    answer_file = trial.folder / "answer.json"
    child = fork()
    if child == 0:
        answer_file.write_text(json.dumps(in_child(first, trial.log)))
        os._exit(0)
    time.sleep(trial.draws.uniform(0, 0.4))
    later = in_child(second, trial.log)
    os.waitpid(child, 0)
    answers = [json.loads(answer_file.read_text()), later]
    assert not any(problem for _, problem in answers), answers
    return [answer for answer, _ in answers]


def _jump(trial: Trial) -> None:
    """Train while the clock of the day jumps by years, back and forth."""

    def train() -> None:
        now, draws = time.time, Random(trial.number)
        time.time = lambda: now() + draws.choice((-_YEARS, 0.0, _YEARS))
        train_small("GPT fp32", trial.folder / "run")

    _, problem = in_child(train, trial.log)
    assert problem is None, problem
    assert digest(trial.folder / "run") == digest(trial.shared / "whole" / "GPT fp32" / "run"), "another result"


KINDS: dict[str, Callable[[Trial], None]] = {
    "two trainings": partial(_compete, name="train"),
    "two builds": partial(_compete, name="corpus build"),
    "two tokenizers": partial(_compete, name="tokenizer train"),
    "two exports": partial(_compete, name="checkpoint export"),
    "two evaluations": partial(_compete, name="evaluate"),
    "one scratch folder": _share_scratch,
    "jumping clock": _jump,
}


def _run(trial: Trial) -> str:
    name = list(KINDS)[trial.number % len(KINDS)]
    KINDS[name](trial)
    return name


TOGETHER = Part(
    name="together",
    promise="two jobs on one folder, output or scratch folder, or a clock that jumps, do not change a result; a job "
    "that cannot go on is refused in one line",
    run=_run,
    prepare=_prepare,
    trials=70,
    short=0,
)


def _soak(trial: Trial) -> str:
    """Resume for four minutes without a pause; the second trial 1,000 times, over two hours."""
    seconds, pace = (_TWO_HOURS, _TWO_HOURS / 1000) if trial.number else (240.0, 0.0)
    begin, points = time.monotonic(), list[tuple[float, int, int, int]]()
    while (elapsed := time.monotonic() - begin) < seconds:
        time.sleep(max(0.0, len(points) * pace - elapsed))
        shutil.rmtree(trial.folder / "run", ignore_errors=True)
        shutil.copytree(trial.shared / "before" / "run", trial.folder / "run")
        with contextlib.redirect_stderr(io.StringIO()):
            hornbook.train(trial.folder / "run", device="cpu", threads=1)
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        points.append((elapsed, memory, len(os.listdir("/proc/self/fd")), threading.active_count()))  # noqa: PTH208
    assert digest(trial.folder / "run") == expected_of(trial, "train"), "the last resume ended in another state"
    later = np.array(points[len(points) // 2 :], dtype=np.float64)
    slope = float(np.polyfit(later[:, 0] / 3600, later[:, 1], 1)[0])
    assert later[:, 2].max() <= points[1][2] and later[:, 3].max() <= points[1][3], "more descriptors or threads"
    assert slope <= _SLOPE, f"memory grows by {slope / (1 << 20):.1f} MiB an hour, of {later[-1, 1] / (1 << 20):.0f}"
    return f"{seconds / 60:.0f} minutes, {len(points)} resumes, {slope / (1 << 20):+.2f} MiB an hour"


SOAK = Part(
    name="soak",
    promise="a process that resumes runs, for four minutes and for two hours, holds no more memory, descriptors and "
    "threads",
    run=_soak,
    prepare=prepare,
    trials=2,
    short=0,
    longest=_TWO_HOURS + 600,
)
