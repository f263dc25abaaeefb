import json
from pathlib import Path

import pytest
from fake_run import make_run

from hornbook.errors import DataError, StorageError, UserError
from hornbook.storage import faults
from hornbook.track.notes import LONGEST_NOTE, LONGEST_TAG, MOST_TAGS, Notes, read_notes, tagged, write_notes
from hornbook.track.runs import summarize

ODD = "\x1b[2J\u202e<b>"


def test_what_was_written_is_read_and_summarized(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert read_notes(run) == Notes()
    notes = Notes(tags=("baseline", "größer"), note='two\nlines of "text" ' + ODD)
    write_notes(run, notes)
    assert read_notes(run) == notes
    assert (summarize(run).tags, summarize(run).note) == (notes.tags, notes.note)


def test_tags_are_added_once_and_removed() -> None:
    notes = Notes(tags=("a", "b"), note="kept")
    assert tagged(notes, ["c", "a"], ["b"]) == Notes(tags=("a", "c"), note="kept")


@pytest.mark.parametrize("tag", ["", "two words", "a,b", "x" * (LONGEST_TAG + 1), ODD, "line\n"])
def test_a_tag_is_one_short_word(tag: str) -> None:
    with pytest.raises(UserError, match="expected one word") as caught:
        tagged(Notes(), [tag], [])
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 200


def test_too_much_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    write_notes(tmp_path, Notes(note="before"))
    for notes in (Notes(tags=tuple(map(str, range(MOST_TAGS + 1)))), Notes(note="x" * (LONGEST_NOTE + 1))):
        with pytest.raises(UserError, match="expected at most"):
            write_notes(tmp_path, notes)
    assert read_notes(tmp_path).note == "before"


@pytest.mark.parametrize(
    "content",
    ["[]", "{", '{"tags": "a"}', '{"tags": [1]}', '{"note": 3}', json.dumps({"tags": ["x" * 1000]}),
     json.dumps({"tags": ["a"] * 1000}), json.dumps({"note": "x" * 10_000})],
)  # fmt: skip
def test_a_malformed_file_is_one_line_with_its_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "notes.json").write_text(content)
    with pytest.raises(DataError, match=r"notes\.json") as caught:
        read_notes(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_write_that_fails_leaves_the_notes_before(tmp_path: Path) -> None:
    write_notes(tmp_path, Notes(note="before"))
    with faults.inject("write", 1, "enospc"), pytest.raises(StorageError):
        write_notes(tmp_path, Notes(note="after"))
    assert read_notes(tmp_path).note == "before"
