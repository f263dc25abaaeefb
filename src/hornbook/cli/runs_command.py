"""``hornbook runs``: list, compare, tag and report runs, or serve them as a page until Ctrl-C.

hornbook runs compare runs/demo runs/demo-wide
hornbook runs serve runs/mine runs/other --port 8800
hornbook runs tag runs/mine runs/other --add baseline
hornbook runs note runs/mine "the learning rate was too high"

Tags and a note are kept in the folder of a run.
"""

import argparse
import dataclasses
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli import runs_compare
from hornbook.cli.arguments import Number
from hornbook.cli.table import column_lines, print_columns, say
from hornbook.config.options import Bounds, Spec
from hornbook.errors import UserError

if TYPE_CHECKING:
    from hornbook.track.notes import Notes
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
    _add_serve(commands)
    _add_notes(commands)
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
    say(*(f"warning: {problem}" for summary in summaries for problem in summary.damaged))
    if not folders:
        say(f"no runs below {root}; start one with `hornbook train RECIPE`")
    return {"root": str(root), "runs": [dataclasses.asdict(summary) for summary in summaries], "unreadable": broken}


def report_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Write the report page and print its path."""
    from hornbook.track.report import write_report
    from hornbook.track.runs import read_run

    run = read_run(Path(arguments.run))
    path = write_report(run.folder, run)
    say(*(f"warning: {problem}" for problem in run.damaged), error=True)
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
            summary.progress,
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


def _add_serve(commands: "argparse._SubParsersAction[Any]") -> None:
    """Declare ``serve``."""
    served = commands.add_parser(
        "serve",
        help="show runs in a browser while they train",
        description="Serve a page that shows runs while they train. Press Ctrl-C to stop.",
    )
    served.add_argument(
        "folders", nargs="*", default=["runs"], metavar="FOLDER", help="runs, or folders with runs (default: runs)"
    )
    served.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine)")
    served.add_argument(
        "--port",
        type=Number(Spec(type=int, bounds=Bounds(minimum=0, maximum=65535))),
        default=0,
        metavar="N",
        help="port; 0: a free one (default: 0)",
    )
    served.add_argument(
        "--no-token", action="store_true", help="let everyone who can connect read the runs, other users included"
    )
    served.set_defaults(handler=serve_command)


def serve_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Print the URL and serve until Ctrl-C.

    Raises:
        UserError: a folder does not exist, or the address is not available.
    """
    from hornbook.track.board import Board
    from hornbook.track.runs import require_folder
    from hornbook.track.serve import BoardServer

    folders = [Path(folder) for folder in arguments.folders]
    for folder in folders:
        require_folder(folder)
    token = "" if arguments.no_token else secrets.token_urlsafe(24)
    with BoardServer(Board(folders), arguments.host, arguments.port, token) as server:
        if not server.is_loopback:
            who = "can read these runs" if arguments.no_token else "with this address can read these runs, unencrypted"
            print(f"hornbook: warning: other machines {who}", file=sys.stderr)
        elif arguments.no_token:
            print("hornbook: warning: other users of this machine can read these runs", file=sys.stderr)
        print(f"{server.url}   Ctrl-C ends it", flush=True)
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            print()
        return {"url": server.url}


def _add_notes(commands: "argparse._SubParsersAction[Any]") -> None:
    """Declare ``tag`` and ``note``."""
    tag = commands.add_parser(
        "tag",
        help="show or change the tags of runs",
        description="Add tags to runs or remove them; without options, print the tags.",
    )
    tag.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    tag.add_argument("--add", action="append", default=[], metavar="TAG", help="add a tag; may be repeated")
    tag.add_argument("--remove", action="append", default=[], metavar="TAG", help="remove a tag; may be repeated")
    tag.set_defaults(handler=tag_command)
    note = commands.add_parser(
        "note", help="show or change the note of a run", description="Set the note of a run; without a text, print it."
    )
    note.add_argument("run", metavar="RUN", help="run folder")
    note.add_argument("text", nargs="?", metavar="TEXT", help='the new note; "" removes it')
    note.set_defaults(handler=note_command)


def tag_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Change the tags of all runs, or of none if one cannot be changed, and print them.

    Raises:
        UserError: a folder is not a run, or has not the tag to remove; a tag is not one word.
        DataError: the file of a run's notes is malformed.
        StorageError: it cannot be read or written.
    """
    from hornbook.track.notes import tagged

    notes = {folder: _notes_of(folder) for folder in dict.fromkeys(map(Path, arguments.runs))}
    for tag in arguments.remove:
        if not any(tag in found.tags for found in notes.values()):
            raise UserError(f"none of these runs has the tag {tag!r} to remove; `hornbook runs tag RUN` shows the tags")
    changed = {folder: tagged(found, arguments.add, arguments.remove) for folder, found in notes.items()}
    for folder, found in changed.items():
        if found != notes[folder]:
            _save(folder, found)
    print_columns([[str(folder), " ".join(found.tags) or "no tags"] for folder, found in changed.items()])
    return {"runs": [{"folder": str(folder), "tags": list(found.tags)} for folder, found in changed.items()]}


def note_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Set the note of a run, or print it; see `tag_command` for the errors."""
    from dataclasses import replace

    folder = Path(arguments.run)
    notes = _notes_of(folder)
    if arguments.text is not None:
        notes = replace(notes, note=arguments.text.strip())
        _save(folder, notes)
    say(notes.note or "no note")
    return {"folder": str(folder), "note": notes.note}


def _notes_of(folder: Path) -> "Notes":
    from hornbook.track.notes import read_notes
    from hornbook.track.run_state import is_run

    if not is_run(folder):
        raise UserError(f"no run in {folder}; expected a folder with metrics.jsonl, as `hornbook train` leaves")
    return read_notes(folder)


def _save(folder: Path, notes: "Notes") -> None:
    """Write the notes, and the report again if there is one."""
    from hornbook.track.notes import write_notes
    from hornbook.track.report import write_report

    write_notes(folder, notes)
    if (folder / "report.html").exists():
        write_report(folder)
