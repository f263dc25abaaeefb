"""Reading may stop after any document and go on from there: the same documents, the same tally."""

import bz2
import json
from copy import deepcopy

import pytest
from tiny_wiki import dump, many_pages, page

from hornbook.errors import DataError
from hornbook.text.documents import Position, ReadOptions, Tally, list_sources, read_sources
from hornbook.text.reading import Skipped, after

LINES = ["one", "", "two", "\xff", "three", "four"]
SHAPES = b"one\n\n" + b"x" * 200 + b"\n\n\xff\n\ntwo\ntwo\n\n = Title = \n\nthree\n\n"
JSONL = b"".join(
    b'{"text": "\xff"}\n' if text == "\xff" else json.dumps({"text": text}).encode() + b"\n" for text in LINES
)
EXTRACTED = b"".join(b'<doc id="1" url="" title="a">\n%s\n</doc>\n' % text for text in (b"a", b"", b"\xff", b"b"))
DUMP = dump([page("A", "a"), page("B", "#", namespace=1), page("C", "c", redirect="A"), *many_pages(5), page("D", "")])


def files_of(shape, folder):
    content = {"jsonl": JSONL, "wikiextractor": EXTRACTED, "wikipedia": DUMP}.get(shape, SHAPES)
    for name in "abc":
        (folder / f"{name}.data").write_bytes(content)
    (folder / "d.data.bz2").write_bytes(bz2.compress(content)[:-4])  # a whole file that is a fault at its end
    (folder / "e.data").write_bytes(content)


@pytest.mark.parametrize("shape", ["text", "lines", "blank-lines", "wikitext", "jsonl", "wikiextractor", "wikipedia"])
def test_going_on_from_any_document(tmp_path, shape):
    files_of(shape, tmp_path)
    options = ReadOptions(format=shape, on_error="skip", max_line_bytes=100 if shape != "wikipedia" else 1000)
    sources = list_sources([tmp_path], options)
    whole, places = Tally(), []
    found = []
    for document in read_sources(sources, options, whole):
        found.append(document)
        places.append(deepcopy(whole))
    assert len(found) >= (0 if shape == "text" else 4) and whole.faults
    for count, tally in enumerate(places, 1):
        assert tally.documents == count and sources[tally.position.source] == found[count - 1].source
        assert list(read_sources(sources, options, tally, skip=tally.position)) == found[count:]
        assert tally == whole


def test_sources_before_the_position_are_not_opened(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"b")
    sources = [str(tmp_path / "is not there"), str(tmp_path / "b.txt")]
    [found] = read_sources(sources, ReadOptions(), Tally(), skip=Position(1, 0))
    assert found.text == "b"
    assert list(read_sources(sources, ReadOptions(), Tally(), skip=Position(2, 0))) == []
    assert list(read_sources(sources, ReadOptions(), Tally(), skip=Position(1, 1))) == []


def test_errors_count_as_documents_and_notes_do_not():
    outcomes = [Skipped("a"), "one", DataError("two"), Skipped("b"), "three", Skipped("c")]
    assert list(after(iter(outcomes), 0)) == outcomes
    assert list(after(iter(outcomes), 1)) == outcomes[2:]
    assert list(after(iter(outcomes), 2)) == outcomes[3:]
    assert list(after(iter(outcomes), 3)) == outcomes[5:]
    assert list(after(iter(outcomes), 9)) == []
