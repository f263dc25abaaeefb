"""``hornbook demo``: run the whole pipeline on the source files of Python's standard library.

The demo prints and runs the commands that a user would type: train a tokenizer, build a corpus, pre-train a decoder,
evaluate it on held-out files and generate text. The recipe ``auto`` (`hornbook.measure.dial`) chooses the decoder for
the time that is left after tokenizer and corpus, and prints its reasons; ``--short`` always trains the same 20 steps.
The same command resumes an interrupted demo.
"""

import argparse
import shlex
import sysconfig
import time
from pathlib import Path
from typing import Any

from hornbook.cli.arguments import add_device_arguments, positive_number
from hornbook.cli.table import say
from hornbook.storage import refuse_file

EXCLUDED = ("test", "tests", "idlelib", "lib2to3", "pydoc_data", "site-packages", "dist-packages", "__pycache__")
_PLAN = "plan.json"
_VOCAB_SIZE = 8192
VALIDATION = 0.05
_SECONDS_AFTER_TRAINING = 25.0
_SHORT_RECIPE, _SHORT_STEPS, _SHORT_BITS = "decoder-demo", 20, 1.96
_DEFAULT_MINUTES = 5.5


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
    plan = _planned(root, arguments)
    device = ["--device", arguments.device] + (["--threads", str(arguments.threads)] if arguments.threads else [])
    text = [sysconfig.get_path("stdlib"), "--suffix", ".py"]
    text += [option for name in EXCLUDED for option in ("--exclude", name)]
    held_out = ["--validation", str(VALIDATION)]
    tokenizer, corpus, folder = str(root / "tokenizer"), str(root / "corpus"), str(root / "run")
    if not Path(tokenizer).exists():
        command("tokenizer", "train", *text, *held_out, "--vocab-size", str(_VOCAB_SIZE), "--output", tokenizer)
    allowed = ["--allow", "empty-file"]  # an __init__.py may be empty
    command("corpus", "build", *text, *held_out, *allowed, "--tokenizer", tokenizer, "--output", corpus)
    if plan is None:
        deadline = 60 * (arguments.minutes or _DEFAULT_MINUTES) - _SECONDS_AFTER_TRAINING
        plan = _plan(root, arguments, deadline - (time.monotonic() - started))
    trained = command("train", *_recipe(plan), "--data.train", corpus, "--output", folder, *device)
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


def _planned(root: Path, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return the plan of the demo in ``root``; None if there is none.

    Raises UserError if it was started with another length.
    """
    from hornbook.errors import UserError
    from hornbook.storage.json_files import read_json

    if not (root / _PLAN).exists():
        return None
    plan: dict[str, Any] = read_json(root / _PLAN, "plan of the demo")
    asked = _length(arguments)
    begun = plan.get("length", asked)
    if begun != asked:
        raise UserError(
            f"the demo in {root} was started with {begun}, not {asked}: use the same options to resume "
            "it, or choose another --output"
        )
    return plan


def _plan(root: Path, arguments: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Return the steps of a short demo, or the time of another one, and save it with the requested length."""
    from hornbook.storage.files import replace_file
    from hornbook.storage.json_files import dump_json

    plan: dict[str, Any] = {"length": _length(arguments)}
    if arguments.short:
        plan["steps"] = _SHORT_STEPS
        say(f"expect about {_SHORT_BITS} bits per byte of held-out text")
    else:
        plan["time"] = f"{max(1, round(seconds))}s"
    replace_file(root / _PLAN, dump_json(plan))
    return plan


def _recipe(plan: dict[str, Any]) -> list[str]:
    """Return the recipe's name and the options of its length."""
    if "time" in plan:
        return ["auto", "--time", plan["time"]]
    steps = plan["steps"]  # also of a demo that an earlier version of hornbook planned
    return [
        _SHORT_RECIPE,
        "--training.steps",
        str(steps),
        "--schedule.warmup-steps",
        str(max(1, min(100, steps // 10))),
    ]


def _length(arguments: argparse.Namespace) -> str:
    return "--short" if arguments.short else f"--minutes {arguments.minutes or _DEFAULT_MINUTES:g}"
