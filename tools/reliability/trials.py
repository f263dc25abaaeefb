"""Trials of a promise: numbered, drawn from a seed, each in a process of its own, and never run twice.

    RESULTS/deaths.jsonl     {"number": 0, "seed": 1, "commit": "1f0c…", "kind": "BERT, 3 deaths", "error": null, …}
    RESULTS/work/deaths/     what all trials of a part share, such as a run that nobody interrupted

A trial is a function of the part's name, the seed and its number. A part that is called again runs the trials that its
file lacks, at the same commit. The parent imports torch once and forks each trial, which takes milliseconds, so it must
not compute: threads do not survive a fork.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LONGEST = 600.0
"""Seconds after which a trial counts as hanging."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a trial is given."""

    number: int
    seed: int
    shared: Path
    """What the trials have in common, by `Part.prepare` or by the first that needed it; then not to be changed."""
    folder: Path
    """An empty folder of its own."""
    draws: random.Random

    @property
    def log(self) -> Path:
        """What its processes print; kept if it fails."""
        return self.folder.with_suffix(".log")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a trial; ``error`` is None if the promise was kept."""

    number: int
    seed: int
    commit: str
    kind: str
    error: str | None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Part:
    """A promise and how it is tried.

    Attributes:
        promise: what holds if all trials pass, for the table.
        trials: how many the whole suite runs; None for `count`.
        short: how many its short form runs.
        run: runs a trial and returns its kind; an exception says that the promise was broken.
        prepare: makes what the trials share, in the given folder, in a process of its own.
        longest: seconds after which a trial counts as hanging.
        count: number of trials if it depends on the program, such as that of its disk operations.
        details: makes a further table of the outcomes, in Markdown; "" for none.
    """

    name: str
    promise: str
    run: Callable[[Trial], str]
    short: int
    trials: int | None = None
    prepare: Callable[[Path], None] = lambda folder: None
    count: Callable[[Path], int] = lambda folder: 0
    longest: float = LONGEST
    details: Callable[[Sequence[Outcome]], str] = lambda outcomes: ""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which trials to run: a number of each part, the suite's or those of its short form if None."""

    seed: int
    commit: str
    trials: int | None
    is_short: bool
    stops_at_failure: bool


def run_part(part: Part, results: Path, choice: Choice) -> list[Outcome]:
    """Run the trials of a part that are missing in its file, and return all of them in the order of their numbers."""
    if choice.is_short and choice.trials is None and not part.short:
        return []
    seed, commit = choice.seed, choice.commit
    shared = results / "work" / part.name
    file = results / f"{part.name}.jsonl"
    known = {each.number: each for each in read_outcomes(file) if (each.seed, each.commit) == (seed, commit)}
    marker = shared / "prepared"
    if not marker.exists() or marker.read_text() != commit:
        shutil.rmtree(shared, ignore_errors=True)
        shared.mkdir(parents=True)
        if problem := in_child(lambda: part.prepare(shared), results / "work" / f"{part.name}.log", 3 * LONGEST)[1]:
            raise SystemExit(f"{part.name} could not be prepared: {problem}")
        marker.write_text(commit)
    all_trials = part.trials or part.count(shared)
    num_trials = min(choice.trials or (part.short if choice.is_short else all_trials), all_trials)
    for number in range(num_trials):
        if number not in known:
            known[number] = _try(part, number, shared, results / "work", seed=seed, commit=commit)
            with file.open("a", encoding="utf-8") as log:
                log.write(json.dumps(asdict(known[number])) + "\n")
            print(f"{part.name} {number}: {known[number].error or known[number].kind}", flush=True)
        if choice.stops_at_failure and known[number].error:
            break
    return [known[number] for number in sorted(known) if number < num_trials]


def read_outcomes(file: Path) -> list[Outcome]:
    """Return the rows of a file of results; none if it does not exist."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [Outcome(**json.loads(line)) for line in lines]


def in_child(action: Callable[[], Any], log: Path, seconds: float = LONGEST) -> tuple[Any, str | None]:
    """Run ``action`` in a forked process; return what it returned, and what went wrong or None.

    What it prints is appended to ``log``. The process and all that it started are killed after ``seconds``.
    """
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        os.close(reader)
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        answer: tuple[Any, str | None]
        try:
            answer = action(), None
        except BaseException as error:  # it goes into the results
            traceback.print_exc(file=sys.stderr)
            answer = None, f"{type(error).__name__}: {error}"
        with os.fdopen(writer, "w") as pipe:
            json.dump(answer, pipe)
        sys.stdout.flush()
        os._exit(0)
    os.close(writer)
    signal.signal(signal.SIGALRM, lambda number, frame: os.killpg(child, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    signal.setitimer(signal.ITIMER_REAL, 0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not text:
        return None, f"the trial ended with {status}, after at most {seconds:.0f} s"
    result, problem = json.loads(text)
    return result, problem


def fork() -> int:
    """Fork; the parent has no threads that matter, so Python's warning of them is left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _try(part: Part, number: int, shared: Path, work: Path, *, seed: int, commit: str) -> Outcome:
    folder = work / f"{part.name}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    draws = random.Random(f"{part.name}/{seed}/{number}")
    trial = Trial(number=number, seed=seed, shared=shared, folder=folder, draws=draws)
    start = time.monotonic()
    kind, error = in_child(lambda: part.run(trial), trial.log, part.longest)
    if error is None:  # otherwise it is left to be looked at
        shutil.rmtree(folder)
        trial.log.unlink()
    seconds = round(time.monotonic() - start, 3)
    return Outcome(number=number, seed=seed, commit=commit, kind=kind or "", error=error, seconds=seconds)


def failures(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the trials in which a promise was broken."""
    return [outcome for outcome in outcomes if outcome.error is not None]
