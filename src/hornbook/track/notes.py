"""Tags and a note that the owner of a run keeps in its folder, in ``notes.json``.

    {"tags": ["baseline", "paper"], "note": "the learning rate was too high"}

``hornbook runs tag`` and ``hornbook runs note`` write the file; training neither reads nor changes it. Of two commands
that change one run at the same moment, the later one wins.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from hornbook.errors import DataError, UserError
from hornbook.storage.files import replace_file
from hornbook.storage.json_files import dump_json, read_json
from hornbook.wording import one_line

MOST_TAGS, LONGEST_TAG, LONGEST_NOTE = 20, 40, 1000


@dataclass(frozen=True, kw_only=True)
class Notes:
    """What the owner of a run has written about it; not escaped."""

    tags: tuple[str, ...] = ()
    note: str = ""


def read_notes(folder: Path) -> Notes:
    """Return the tags and the note of a run, empty without a file.

    Raises:
        DataError: the file is malformed or longer than ``write_notes`` permits.
        StorageError: it cannot be read.
    """
    path = folder / "notes.json"
    if not path.exists():
        return Notes()
    content = read_json(path, "the notes", follow=False)
    found = content if isinstance(content, dict) else {"tags": None}
    tags, note = found.get("tags", []), found.get("note", "")
    if (
        isinstance(tags, list)
        and len(tags) <= MOST_TAGS
        and all(isinstance(tag, str) and len(tag) <= LONGEST_TAG for tag in tags)
        and isinstance(note, str)
        and len(note) <= LONGEST_NOTE
    ):
        return Notes(tags=tuple(tags), note=note)
    expected = f'{{"tags": [...], "note": "..."}} with at most {MOST_TAGS} tags and {LONGEST_NOTE:,} characters'
    raise DataError(f"{path}: expected {expected}; correct or remove the file")


def write_notes(folder: Path, notes: Notes) -> None:
    """Write tags and note of a run, atomically.

    Raises:
        UserError: there are too many tags, or the note is too long.
        StorageError: the file cannot be written.
    """
    if len(notes.tags) > MOST_TAGS:
        raise UserError(f"{folder}: {len(notes.tags)} tags; expected at most {MOST_TAGS}: remove some first")
    if len(notes.note) > LONGEST_NOTE:
        raise UserError(f"the note has {len(notes.note):,} characters; expected at most {LONGEST_NOTE:,}: shorten it")
    replace_file(folder / "notes.json", dump_json(asdict(notes)))


def tagged(notes: Notes, add: Collection[str], remove: Collection[str]) -> Notes:
    """Return notes with other tags, in the order in which they were added.

    Raises:
        UserError: a tag to add is empty or too long, or has spaces, commas or characters that control a terminal.
    """
    for tag in add:
        if not 0 < len(tag) <= LONGEST_TAG or "," in tag or len(tag.split()) != 1 or one_line(tag) != tag:
            shown = one_line(tag[: LONGEST_TAG + 1])
            raise UserError(f"tag {shown!r}: expected one word of at most {LONGEST_TAG} characters, without commas")
    kept = dict.fromkeys([*notes.tags, *add])
    return Notes(tags=tuple(tag for tag in kept if tag not in remove), note=notes.note)
