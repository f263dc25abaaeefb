"""``hornbook demo``: run the whole pipeline on the source files of Python's standard library.

The demo prints and runs the commands that a user would type: train a tokenizer, build a corpus, pre-train a decoder,
evaluate it on held-out files and generate text. It first measures the speed of the machine, to choose the number of
steps that fit the time. The same command resumes an interrupted demo.
"""

import argparse
import shlex
import sysconfig
import time
from pathlib import Path
from typing import Any, Final

from hornbook.cli.arguments import add_device_arguments, positive_number, prepared_device
from hornbook.cli.table import say
from hornbook.storage import refuse_file

EXCLUDED = ("test", "tests", "idlelib", "lib2to3", "pydoc_data", "site-packages", "dist-packages", "__pycache__")
_RECIPE = "decoder-demo"
_PLAN = "plan.json"
_VOCAB_SIZE = 8192
VALIDATION = 0.05
_SECONDS_AFTER_TRAINING = 25.0
_OVERHEAD = 1.1  # for validation, checkpoints and other processes on the machine
_SHORT_STEPS = 20
_DEFAULT_MINUTES = 5.5
_MEASURED: Final = ((20, 1.96), (430, 1.08), (570, 0.99))
"""Runs of the demo by their number of steps, with the held-out bits per byte; see LOG.md."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--output", type=Path, default=Path("demo"), metavar="DIR", help="output folder (default: demo)"
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=positive_number, help=f"total time in minutes (default: {_DEFAULT_MINUTES})")
    length.add_argument("--short", action="store_true", help="train for 20 steps only, as a quick check")
    add_device_arguments(parser)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Run the demo and return the results of training and evaluation.

    Raises UserError if the folder has a demo of another length.
    """
    started = time.monotonic()
    root: Path = arguments.output
    refuse_file(root)
    steps = _planned(root, arguments)
    device = ["--device", arguments.device] + (["--threads", str(arguments.threads)] if arguments.threads else [])
    text = [sysconfig.get_path("stdlib"), "--suffix", ".py"]
    text += [option for name in EXCLUDED for option in ("--exclude", name)]
    held_out = ["--validation", str(VALIDATION)]
    tokenizer, corpus, folder = str(root / "tokenizer"), str(root / "corpus"), str(root / "run")
    if not Path(tokenizer).exists():
        command("tokenizer", "train", *text, *held_out, "--vocab-size", str(_VOCAB_SIZE), "--output", tokenizer)
    allowed = ["--allow", "empty-file"]  # an __init__.py may be empty
    command("corpus", "build", *text, *held_out, *allowed, "--tokenizer", tokenizer, "--output", corpus)
    if steps is None:
        deadline = 60 * (arguments.minutes or _DEFAULT_MINUTES) - _SECONDS_AFTER_TRAINING
        steps = _plan(root, corpus, arguments, deadline - (time.monotonic() - started))
    length = ["--training.steps", str(steps), "--schedule.warmup-steps", str(max(1, min(100, steps // 10)))]
    trained = command("train", _RECIPE, "--data.train", corpus, *length, "--output", folder, *device)
    evaluated = command("evaluate", folder, *device)
    command("generate", folder, "--prompt", "def read(self, size=-1):", "--temperature", "0.7", *device)
    command("runs", "report", folder)
    minutes = (time.monotonic() - started) / 60
    say("", f"done in {minutes:.1f} minutes; the report is {Path(folder) / 'report.html'}")
    return {"train": trained, "evaluate": evaluated, "minutes": round(minutes, 2)}


def command(*words: str) -> dict[str, Any]:
    """Print a command as a user would type it, run it in this process, and return its result."""
    from hornbook.cli.main import execute

    print(f"\n$ hornbook {shlex.join(words)}", flush=True)
    return execute(list(words))


def _planned(root: Path, arguments: argparse.Namespace) -> int | None:
    """Return the number of steps of the demo in ``root``; None if there is none.

    Raises UserError if it was started with another length.
    """
    from hornbook.errors import UserError
    from hornbook.storage.json_files import read_json

    if not (root / _PLAN).exists():
        return None
    plan = read_json(root / _PLAN, "plan of the demo")
    asked = _length(arguments)
    begun = plan.get("length", asked)
    if begun != asked:
        raise UserError(
            f"the demo in {root} was started with {begun}, not {asked}: use the same options to resume "
            "it, or choose another --output"
        )
    return int(plan["steps"])


def _plan(root: Path, corpus: str, arguments: argparse.Namespace, seconds: float) -> int:
    """Return the number of steps that fit the time, and save it with the requested length."""
    from hornbook.storage.files import replace_file
    from hornbook.storage.json_files import dump_json

    plan = {"steps": _SHORT_STEPS} if arguments.short else _measure(corpus, arguments, seconds)
    replace_file(root / _PLAN, dump_json(plan | {"length": _length(arguments)}))
    steps, bits = int(plan["steps"]), expected_bits(int(plan["steps"]))
    say(f"expect {'about' if steps <= _MEASURED[-1][0] else 'less than'} {bits:.2f} bits per byte of held-out text")
    return steps


def expected_bits(steps: int) -> float:
    """Return the held-out bits per byte of the measured runs, interpolated over the logarithm of the steps."""
    import numpy as np

    measured, bits = zip(*_MEASURED, strict=True)
    return float(np.interp(np.log(steps), np.log(measured), bits))


def _length(arguments: argparse.Namespace) -> str:
    return "--short" if arguments.short else f"--minutes {arguments.minutes or _DEFAULT_MINUTES:g}"


def _measure(corpus: str, arguments: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Time a few steps of the recipe, print the expected duration, and plan as many steps as fit ``seconds``."""
    from hornbook.config import load_recipe
    from hornbook.measure.throughput import hornbook_step, measure_steps
    from hornbook.parallel.world import World

    recipe = load_recipe(_RECIPE, ["--data.train", corpus, "--model.vocab-size", str(_VOCAB_SIZE)]).recipe
    world = World(device=prepared_device(arguments))
    speed = measure_steps({_RECIPE: hornbook_step(recipe, world)}, world, rounds=5)[_RECIPE]
    assert recipe.training.steps is not None, f"{_RECIPE} sets training.steps"
    steps = max(_SHORT_STEPS, min(recipe.training.steps, int(seconds / speed.step_seconds / _OVERHEAD)))
    minutes = steps * speed.step_seconds * _OVERHEAD / 60
    print(
        f"\nthis machine trains {speed.tokens_per_second:,.0f} tokens/s: {steps:,} of the recipe's "
        f"{recipe.training.steps:,} steps, about {minutes:.1f} minutes"
    )
    return {"steps": steps, "tokens_per_second": round(speed.tokens_per_second), "minutes": round(minutes, 2)}
