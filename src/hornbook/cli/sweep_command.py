"""``hornbook sweep RECIPE``: train a recipe with several values of its options, and compare the runs.

    hornbook sweep demo --data corpora/mine --lr 1e-3,3e-3 --seed 1,2
        -> sweeps/demo/learning-rate=1e-3_seed=1, ..., sweeps/demo/comparison.html

Each run is a process of its own, ``hornbook train``, whose output is in a ``.log`` beside the run's folder. The same
command resumes an interrupted sweep, since ``hornbook train`` resumes an interrupted run; finished ones are skipped.
"""

import argparse
import itertools
import math
import os
import queue
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from hornbook.cli.arguments import Number, add_device_arguments, add_recipe_arguments, positive_integer
from hornbook.cli.table import print_columns, say
from hornbook.config.options import Bounds, Spec
from hornbook.errors import DivergedError, HornbookError, StoppedBySignal, UserError
from hornbook.storage.system import storage_errors

if TYPE_CHECKING:
    from hornbook.config import Recipe
    from hornbook.config.recipe import Key
    from hornbook.config.recipe_files import Tree
    from hornbook.track.runs import RunSummary


class Candidate(NamedTuple):
    """One choice of values: its name, and its options for ``hornbook train``."""

    name: str
    words: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Train a recipe with several values of its options, separated by commas, in all combinations, and compare the "
        "runs. The same command resumes an interrupted sweep."
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder for the runs (default: sweeps/<name>)")
    parser.add_argument(
        "--random", type=positive_integer, metavar="N", help="train only N combinations, drawn with a fixed seed"
    )
    parser.add_argument(
        "--halving",
        type=Number(Spec(type=int, bounds=Bounds(minimum=2))),
        metavar="F",
        help="successive halving: train all briefly, continue with the best of F by validation loss, F times as long, "
        "and so on until the recipe's number of steps",
    )
    parser.add_argument(
        "--gpus", metavar="I,J,...", help="train one run at a time on each of these GPUs (default: one run at a time)"
    )
    add_device_arguments(parser)
    add_recipe_arguments(parser)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Train the combinations, print them, the best first, and write the page that compares them."""
    from hornbook.config import load_recipe
    from hornbook.storage import make_directory, refuse_file
    from hornbook.track.comparison_page import write_comparison
    from hornbook.track.runs import compare

    if arguments.gpus and not all(arguments.gpus.split(",")):
        raise UserError(f"--gpus {arguments.gpus}: expected indices separated by commas, such as 0,1")
    candidates = [*dict.fromkeys(candidates_of(arguments.overrides))]  # values may be given twice
    if len(candidates) < 2:
        raise UserError("nothing to sweep: give an option several values, separated by commas, as in --lr 1e-3,3e-3")
    if arguments.random is not None:
        chosen = random.Random(0).sample(range(len(candidates)), min(arguments.random, len(candidates)))
        candidates = [candidates[number] for number in sorted(chosen)]
    recipe, *_ = [load_recipe(arguments.recipe, candidate.words).recipe for candidate in candidates]
    output: Path = arguments.output or Path("sweeps") / recipe.name
    rounds, remaining = _rounds(recipe, len(candidates), arguments.halving), candidates
    refuse_file(output)
    make_directory(output)
    for steps in rounds:
        length = [f"--training.steps={steps}"] if steps else []
        if arguments.halving and hasattr(recipe.schedule, "decay_end"):
            length.append(f"--schedule.decay-end={recipe.training.steps}")  # the rates of the whole run, in each round
        _train_all(remaining, length, output, arguments)
        remaining = sorted(remaining, key=lambda candidate: _loss_at(steps, output / candidate.name))
        if arguments.halving:
            say(f"after {steps:,} steps, the best is {remaining[0].name}")
            remaining = remaining[: math.ceil(len(remaining) / arguments.halving)]
    comparison = compare([output / candidate.name for candidate in candidates])
    write_comparison(output / "comparison.html", comparison, "steps")
    ranked = sorted(
        zip(candidates, comparison.runs, strict=True),
        key=lambda pair: (-pair[1].step, _loss_at(0, output / pair[0].name)),
    )
    _print(ranked)
    say("", str(output / "comparison.html"))
    runs = [
        {"run": summary.folder, "step": summary.step, "validation_loss": summary.validation_loss}
        for _, summary in ranked
    ]
    return {"best": runs[0]["run"], "runs": runs, "page": output / "comparison.html"}


def candidates_of(overrides: "Tree") -> Iterator[Candidate]:
    """Yield the combinations of the options' values, in order; lists, such as ``data.train``, are single values."""
    values = {key: _values(key, leaf.value) for key, leaf in overrides.items()}
    swept = [key for key, several in values.items() if len(several) > 1]
    for chosen in itertools.product(*values.values()):
        options = dict(zip(values, chosen, strict=True))
        name = "_".join(f"{key[1].replace('_', '-')}={options[key]}" for key in swept)
        flags = {".".join(filter(None, key)).replace("_", "-"): value for key, value in options.items()}
        words = (f"--{flag}" + ("" if value is None else f"={value}") for flag, value in flags.items())
        yield Candidate(name=name.replace("/", "-"), words=tuple(words))


def _values(key: "Key", text: object) -> list[str | None]:
    from hornbook.config.recipe import SECTIONS, specs

    owners = specs(key[0]).get(key[1], ()) if key[0] in SECTIONS else ()
    is_list = any(spec.type is tuple for _, spec in owners)
    return [None if text is None else str(text)] if is_list or text is None else [*str(text).split(",")]


def _rounds(recipe: "Recipe", num_candidates: int, factor: int | None) -> list[int]:
    """Return the lengths of the rounds in steps; 0 for the recipe's own length."""
    if factor is None:
        return [0]
    if recipe.training.steps is None:
        raise UserError("--halving needs a length in steps; set --steps")
    num_rounds = math.floor(math.log(num_candidates, factor) + 1e-9) + 1
    return [max(1, recipe.training.steps // factor**left) for left in reversed(range(num_rounds))]


def _train_all(
    candidates: Sequence[Candidate], length: Sequence[str], output: Path, arguments: argparse.Namespace
) -> None:
    """Train the candidates, one on each GPU at a time, or one after the other; after an error or a signal, stop all."""
    gpus: queue.SimpleQueue[str] = queue.SimpleQueue()
    processes = _Processes()
    names = arguments.gpus.split(",") if arguments.gpus else [""]
    for name in names:
        gpus.put(name)

    def train(candidate: Candidate) -> None:
        gpu = gpus.get()
        try:
            _train(candidate, length, output, arguments, {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}, processes)
        finally:
            gpus.put(gpu)

    with ThreadPoolExecutor(len(names)) as pool:
        for done in [pool.submit(train, candidate) for candidate in candidates]:
            try:
                done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                processes.stop()
                raise


class _Processes:
    """Running processes, in sessions of their own, so that Ctrl-C reaches them only once, through this one."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        self._is_stopped = False

    def run(self, command: Sequence[str], log: IO[str], environment: Mapping[str, str]) -> int:
        """Run a command and return its exit code."""
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        self._started.append(process)
        if self._is_stopped:  # meanwhile, in the main thread
            process.terminate()
        return process.wait()

    def stop(self) -> None:
        """Make the running ones save and stop."""
        self._is_stopped = True
        for process in self._started:
            process.terminate()


def _train(
    candidate: Candidate,
    length: Sequence[str],
    output: Path,
    arguments: argparse.Namespace,
    more: Mapping[str, str],
    processes: _Processes,
) -> None:
    """Train a candidate in a process, unless that is done; a diverged run is only reported.

    Raises:
        UserError: the run cannot start.
        HornbookError: it failed; StoppedBySignal: it was stopped.
    """
    from hornbook.config import load_recipe

    folder = output / candidate.name
    if _is_done(load_recipe(arguments.recipe, [*candidate.words, *length]).recipe, folder):
        say(f"{candidate.name}  finished before")
        return
    words = ["train", arguments.recipe, *candidate.words, *length, "--output", str(folder)]
    words += ["--device", arguments.device, *(["--threads", str(arguments.threads)] if arguments.threads else [])]
    log = output / f"{candidate.name}.log"
    with storage_errors("open", log):
        file = log.open("a", encoding="utf-8")
    with file:
        code = processes.run([sys.executable, "-m", "hornbook", *words], file, {**os.environ, **more})
    if code == StoppedBySignal.exit_code:
        raise StoppedBySignal(f"{candidate.name} was stopped; run the same command again to resume the sweep")
    if code not in (0, DivergedError.exit_code):
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
        kind = UserError if code == UserError.exit_code else HornbookError
        raise kind(f"{candidate.name} failed with exit code {code}, see {log}: {''.join(last)}")
    say(f"{candidate.name}  {'trained' if code == 0 else 'diverged'}")


def _is_done(recipe: "Recipe", folder: Path) -> bool:
    """Return whether a run in the folder has finished this recipe, or gone on to more steps by successive halving.

    Raises:
        UserError: the folder has a run of another recipe.
    """
    from hornbook.config.recipe_files import IDENTITY

    if not (folder / IDENTITY).exists():
        return False
    from hornbook.run.launch import open_data
    from hornbook.run.run_folder import RunFolder
    from hornbook.track.run_state import newest_checkpoint
    from hornbook.track.runs import read_run

    run = RunFolder(folder)
    recipe, sources = open_data(recipe, run, None)
    run.refuse_other_run(recipe, sources.fingerprints)
    newest, steps, sessions = newest_checkpoint(folder), recipe.training.steps, read_run(folder).sessions
    if newest is None:
        return False
    has_finished = bool(sessions) and sessions[-1].get("ended") == "finished"  # perhaps early, or after epochs
    return (steps is not None and newest[0] >= steps) or (
        has_finished and run.last_recipe is not None and run.last_recipe.training == recipe.training
    )


def _loss_at(steps: int, folder: Path) -> float:
    """Return a run's validation loss or, without validation data, its training loss; infinite for a diverged run.

    Args:
        steps: the step at which it counts, also if the run went on; 0 for the last one.
        folder: of the run.
    """
    from hornbook.track.runs import last, read_run

    found = read_run(folder)
    rows = found.of_kind("validation") or found.of_kind("train")
    loss = last((row for row in rows if not steps or row["step"] <= steps), "loss")
    has_diverged = found.sessions and found.sessions[-1].get("ended") == "diverged"
    return math.inf if loss is None or has_diverged else loss


def _print(ranked: "Sequence[tuple[Candidate, RunSummary]]") -> None:
    from hornbook.track import units

    rows = [
        (candidate.name, summary.state, units.count(summary.step), units.loss(summary.validation_loss),
         units.loss(summary.loss))
        for candidate, summary in ranked
    ]  # fmt: skip
    say("")
    print_columns([("run", "state", "step", "validation loss", "loss"), *rows], right=range(2, 5))
