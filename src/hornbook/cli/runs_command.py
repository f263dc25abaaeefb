"""``hornbook runs``: list, compare, tag and report runs, or serve them as a page.

hornbook runs compare runs/demo runs/demo-wide
"""

import argparse
import dataclasses
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hornbook.cli import runs_compare, runs_notes, runs_serve
from hornbook.cli.table import column_lines, print_columns, say

if TYPE_CHECKING:
    from hornbook.track.runs import RunSummary

_MARK, _PART = "*", "~"
_LESS_IMPORTANT = ("objective", "best", "tokens", "tok/s", "tags", "loss", "state")
"""Columns that a terminal which is too narrow does not get, the first ones first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the commands."""
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    found = commands.add_parser("list", help="list runs", description="List all runs below a folder.")
    found.add_argument(
        "root", nargs="?", default="runs", metavar="ROOT", help="folder to search (default: %(default)s)"
    )
    found.set_defaults(handler=list_command)
    runs_compare.add_arguments(commands)
    runs_serve.add_arguments(commands)
    runs_notes.add_arguments(commands)
    written = commands.add_parser("report", help="write the report page", description="Write RUN/report.html.")
    written.add_argument("run", metavar="RUN", help="run folder")
    written.set_defaults(handler=report_command)


def list_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Print a line for each run; runs with malformed files are listed with the error."""
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
        say(f"unreadable: {problem['problem']}")
    if not folders:
        say(f"no runs below {root}; start one with `hornbook train RECIPE`")
    return {"root": str(root), "runs": [dataclasses.asdict(summary) for summary in summaries], "unreadable": broken}


def report_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Write the report page and print its path."""
    from hornbook.track.report import write_report

    path = write_report(Path(arguments.run))
    say(str(path))
    return {"report": str(path)}


def _losses(summary: "RunSummary") -> Iterator[str]:
    """Yield the losses and bits per byte, with the step of each that was not measured at the last step."""
    from hornbook.track import units

    for name, (value, step, _) in summary.measured.items():
        is_bits = name == "bits_per_byte"
        mark = _MARK if is_bits and summary.bits_per_byte_by == "validation" else ""
        mark = _PART if name.endswith("validation_loss") and "of the text" in summary.validation_scored else mark
        yield units.at_step(units.bits(value) if is_bits else units.loss(value), step, summary.step) + mark


def _print_table(summaries: "Sequence[RunSummary]") -> None:
    from hornbook.track import units

    head = [
        "run",
        "state",
        "objective",
        "step",
        "tokens",
        "loss",
        "valid",
        "best",
        "bits/B",
        "tok/s",
        "time",
        "skipped",
        "tags",
    ]
    rows = [
        [
            summary.folder,
            summary.state,
            summary.objective or units.MISSING,
            units.progress(summary.step, summary.total_steps),
            units.short(summary.tokens),
            *_losses(summary),
            units.short(summary.tokens_per_second),
            units.duration(summary.seconds),
            units.count(summary.skipped_steps),
            " ".join(summary.tags),
        ]
        for summary in summaries
    ]
    hidden = {name for name in ("skipped", "tags") if all(row[head.index(name)] in ("0", "") for row in rows)}
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for name in (None, *_LESS_IMPORTANT):
        hidden |= {name} if name else set()
        shown = [at for at, title in enumerate(head) if title not in hidden]
        lines = [[row[at] for at in shown] for row in (head, *rows)]
        if width is None or max(map(len, column_lines(lines, right=range(3, len(head))))) <= width:
            break
    print_columns(lines, right=[at for at, place in enumerate(shown) if place >= 3])
    if any(summary.bits_per_byte_by == "validation" for summary in summaries):
        say(f"{_MARK} with the validation loss, without overlapping windows; `hornbook evaluate` is more exact")
    scored = (summary.validation_scored.partition(", ±")[0] for summary in summaries)
    if parts := {part for part in scored if "of the text" in part}:
        part = f", {parts.pop()}" if len(parts) == 1 else ""
        say(f"{_PART} over a part of the validation text{part}; `hornbook evaluate` measures all of it")
    if any("@" in cell for row in rows for cell in row[5:9]):
        say("@ the step at which a number was measured, where that is not the run's last step")
