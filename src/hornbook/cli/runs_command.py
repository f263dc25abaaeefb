"""Looks at runs, finished or not: ``list`` finds them, ``compare`` sets them side by side, ``report`` writes a page.

hornbook runs compare runs/demo runs/demo-wide
"""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hornbook.cli.table import print_columns

if TYPE_CHECKING:
    from hornbook.track.runs import Comparison, RunSummary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares ``list``, ``compare`` and ``report``."""
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    found = commands.add_parser("list", help="list runs", description="List all runs below a folder.")
    found.add_argument(
        "root", nargs="?", default="runs", metavar="ROOT", help="folder to search (default: %(default)s)"
    )
    found.set_defaults(handler=list_command)
    compared = commands.add_parser(
        "compare",
        help="compare runs",
        description="Compare runs: their progress and the differences of their recipes.",
    )
    compared.add_argument("runs", nargs="+", metavar="RUN", help="run folders, two or more")
    compared.set_defaults(handler=compare_command)
    written = commands.add_parser("report", help="write the report page", description="Write RUN/report.html.")
    written.add_argument("run", metavar="RUN", help="run folder")
    written.set_defaults(handler=report_command)


def run(arguments: argparse.Namespace) -> dict[str, object] | None:
    """Hands over to the subcommand."""
    handler: Callable[[argparse.Namespace], dict[str, object]] = arguments.handler
    return handler(arguments)


def list_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Prints a line for each run; one whose files are malformed is shown with what is wrong and hides no other."""
    from hornbook.errors import HornbookError
    from hornbook.track.runs import find_runs, summarize

    root = Path(arguments.root)
    folders = find_runs(root)
    summaries: list[RunSummary] = []
    broken: list[dict[str, object]] = []
    for folder in folders:
        try:
            summaries.append(summarize(folder))
        except HornbookError as error:
            broken.append({"folder": str(folder), "problem": str(error)})
    if summaries:
        _print_table(summaries)
    for problem in broken:
        print(f"unreadable: {problem['problem']}")
    if not folders:
        print(f"no runs below {root}; start one with `hornbook train RECIPE`")
    return {"root": str(root), "runs": [_as_json(summary) for summary in summaries], "unreadable": broken}


def compare_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Prints a table of the runs and one of the recipe keys in which they differ."""
    from hornbook.errors import UserError
    from hornbook.track.runs import compare

    if len(arguments.runs) < 2:
        raise UserError(f"one run, {arguments.runs[0]}; expected two or more to compare; name another run folder")
    comparison = compare([Path(folder) for folder in arguments.runs])
    _print_table(comparison.runs)
    _print_differences(comparison)
    differences = {key: [_plain(value) for value in values] for key, values in comparison.differences.items()}
    return {"runs": [_as_json(summary) for summary in comparison.runs], "differences": differences}


def report_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Writes the page and names it."""
    from hornbook.track.report import write_report

    path = write_report(Path(arguments.run))
    print(path)
    return {"report": str(path)}


def _as_json(summary: "RunSummary") -> dict[str, object]:
    return dataclasses.asdict(summary)


def _plain(value: object) -> object:
    """A recipe's value as JSON has it: numbers, texts, truths and lists stay, a date becomes a text."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _print_table(summaries: "Sequence[RunSummary]") -> None:
    from hornbook.track import units

    head = ["run", "step", "tokens", "loss", "valid", "best", "bits/B", "tok/s", "time", "skipped"]
    rows = [
        [
            summary.folder,
            _progress(summary),
            units.short(summary.tokens),
            units.loss(summary.loss),
            units.loss(summary.validation_loss),
            units.loss(summary.best_validation_loss),
            units.bits(summary.bits_per_byte),
            units.short(summary.tokens_per_second),
            units.duration(summary.seconds),
            units.count(summary.skipped_steps),
        ]
        for summary in summaries
    ]
    shown = len(head) if any(summary.skipped_steps for summary in summaries) else len(head) - 1
    print_columns([row[:shown] for row in (head, *rows)], right=range(1, shown))


def _progress(summary: "RunSummary") -> str:
    from hornbook.track import units

    total = "" if summary.total_steps is None else f"/{units.count(summary.total_steps)}"
    return f"{units.count(summary.step)}{total}"


def _print_differences(comparison: "Comparison") -> None:
    if not comparison.differences:
        print("\nthe recipes are identical")
        return
    print()
    head = ["recipe", *(summary.folder for summary in comparison.runs)]
    rows = [
        [key, *("not set" if value is None else str(_plain(value)) for value in values)]
        for key, values in comparison.differences.items()
    ]
    print_columns([head, *rows])
