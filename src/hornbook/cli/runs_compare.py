"""``hornbook runs compare``: compare progress, curves and recipes of runs, in the terminal and in a page.

hornbook runs compare runs/demo runs/demo-wide --over tokens --html wide.html
"""

import argparse
import dataclasses
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.table import print_side_by_side, say

if TYPE_CHECKING:
    from hornbook.track.runs import Comparison, RunSummary

_WITHOUT_TERMINAL = 80
_WIDEST_CHART = 120


def add_arguments(commands: "argparse._SubParsersAction[Any]") -> None:
    """Declare ``compare``."""
    compared = commands.add_parser(
        "compare",
        help="compare runs",
        description="Compare the progress, curves and recipes of runs.",
    )
    compared.add_argument("runs", nargs="+", metavar="RUN", help="run folders, two or more")
    compared.add_argument(
        "--over",
        choices=("steps", "tokens", "time"),
        default="steps",
        help="horizontal axis of the curves (default: %(default)s)",
    )
    compared.add_argument("--html", type=Path, metavar="FILE", help="also write a page with the curves")
    compared.set_defaults(handler=compare_command)


def compare_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Print facts, curves and differing recipe keys of the runs; write the page if requested.

    Raises:
        UserError: fewer than two runs are given, or a folder is not a run.
        DataError: a file of a run is malformed.
        StorageError: a file cannot be read, or the page cannot be written.
    """
    from hornbook.errors import UserError
    from hornbook.track.runs import compare, plain_value

    folders = [*{Path(folder).resolve(): Path(folder) for folder in arguments.runs}.values()]  # each once
    if len(folders) < 2:
        raise UserError(f"only one run, {folders[0]}; expected two or more; add another run folder")
    if arguments.html is not None and arguments.html.is_dir():
        raise UserError(f"--html {arguments.html} is a folder: name a file in it")
    comparison = compare(folders)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    _print_facts(comparison, width)
    _print_charts(comparison, arguments.over, min(width or _WITHOUT_TERMINAL, _WIDEST_CHART))
    result: dict[str, object] = {
        "runs": [dataclasses.asdict(summary) for summary in comparison.runs],
        "differences": {
            key: [plain_value(value) for value in values] for key, values in comparison.differences.items()
        },
        "cautions": comparison.cautions,
    }
    if arguments.html is not None:
        from hornbook.storage import make_directory
        from hornbook.track.comparison_page import write_comparison

        make_directory(arguments.html.parent)
        write_comparison(arguments.html, comparison, arguments.over)
        say("", str(arguments.html))
        result["page"] = str(arguments.html)
    return result


def _print_facts(comparison: "Comparison", width: int | None) -> None:
    """Print the facts of each run as columns, and the recipe keys whose values differ."""
    from hornbook.track import units
    from hornbook.track.curves import run_labels
    from hornbook.track.runs import plain_value

    labels = run_labels(len(comparison.runs))
    facts = [_facts(summary) for summary in comparison.runs]
    rows = [[name, *(fact[name] for fact in facts)] for name in facts[0]]
    rows = [row for row in rows if any(cell not in (units.MISSING, "0") for cell in row[1:])]
    print_side_by_side([["", *labels], *rows], width, right=True)
    print()
    for caution in comparison.cautions:
        say(f"note: {caution}")
    if not comparison.differences:
        print("the recipes are identical")
        return
    different = [
        [key, *("not set" if value is None else str(plain_value(value)) for value in values)]
        for key, values in comparison.differences.items()
    ]
    print_side_by_side([["recipe", *labels], *different], width)


def _facts(summary: "RunSummary") -> dict[str, str]:
    from hornbook.track import units

    losses = {
        name: units.at_step((units.bits if name == "bits_per_byte" else units.loss)(value), step, summary.step)
        for name, (value, step, _) in summary.measured.items()
    }
    return {
        "run": summary.folder,
        "state": summary.state,
        "objective": summary.objective or units.MISSING,
        "parameters": units.short(summary.num_parameters),
        "step": summary.progress,
        "tokens": units.short(summary.tokens),
        "loss": losses["loss"],
        "validation loss": losses["validation_loss"],
        "validated on": summary.validation_scored.replace(" of the text", "") or units.MISSING,
        "best": losses["best_validation_loss"],
        "bits per byte": losses["bits_per_byte"],
        "tokens/s": units.short(summary.tokens_per_second),
        "time": units.duration(summary.seconds),
        "skipped": units.count(summary.skipped_steps),
        "tags": " ".join(summary.tags) or units.MISSING,
        "note": summary.note or units.MISSING,
    }


def _print_charts(comparison: "Comparison", over: str, width: int) -> None:
    """Print the curves in Braille or, if the output's encoding lacks it, in letters."""
    import rich.console

    from hornbook.track.curves import AXES, charts_of
    from hornbook.track.terminal_chart import draw

    console = rich.console.Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)
    axis = next(name for name in AXES if name == over)
    for chart in charts_of(comparison.files, axis):
        console.print()
        for line in draw(chart, width, unicode=_writes_braille()):
            console.print(line, soft_wrap=True)


def _writes_braille() -> bool:
    try:
        "\u2800\u2524".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
