"""``hornbook runs tag`` and ``hornbook runs note``: tags and a note, kept in the folder of a run.

hornbook runs tag runs/mine runs/other --add baseline
hornbook runs note runs/mine "the learning rate was too high"
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.table import print_columns, say

if TYPE_CHECKING:
    from hornbook.track.notes import Notes


def add_arguments(commands: "argparse._SubParsersAction[Any]") -> None:
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
    from hornbook.errors import UserError
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
    from hornbook.errors import UserError
    from hornbook.track.notes import read_notes
    from hornbook.track.runs import is_run

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
