import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tiny_text import one_line
from tiny_wiki import TINY_TEXTS, dump, many_pages, page, tiny_dump

from hornbook.errors import DataError
from hornbook.text.documents import ReadOptions, Tally, read_documents
from hornbook.text.reading import CleanOptions, Skipped
from hornbook.wikipedia import reader
from hornbook.wikipedia.reader import read_dump


def read(path, processes=1, start=0, **options):
    found = list(read_dump(str(path), CleanOptions(**options), name=str(path), processes=processes, start=start))
    skipped = Counter(item.kind for item in found if isinstance(item, Skipped))
    return [item for item in found if not isinstance(item, Skipped)], skipped


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "dump.xml"
    path.write_bytes(tiny_dump())
    return path


def test_articles_become_texts_and_the_rest_is_counted(tiny):
    texts, skipped = read(tiny)
    assert [text for text, _ in texts] == TINY_TEXTS
    assert all(tiny.read_bytes()[offset:].startswith(b"<page>") for _, offset in texts)
    assert skipped.pop("empty list items") == 1, "a note on the one article that has a list"
    assert skipped == {"redirects": 1, "pages of other namespaces": 1, "pages that are not wikitext": 1}


def test_options_reach_the_cleaner(tiny):
    texts, _ = read(tiny, titles="drop", lists="drop", headings="drop")
    assert texts[0][0] == "Seine is a stream of 777 km."


def test_the_number_of_processes_makes_no_difference(tmp_path, monkeypatch):
    path = tmp_path / "dump.xml"
    path.write_bytes(dump(many_pages(120)))
    alone = read(path)
    monkeypatch.setattr(reader, "_BATCH_CHARACTERS", 1000)
    assert read(path) == alone
    assert read(path, processes=2) == alone
    assert len(alone[0]) == 120


def test_reading_may_begin_at_any_article_and_cleans_none_before_it(tmp_path, monkeypatch):
    path = tmp_path / "dump.xml"
    path.write_bytes(
        dump([*many_pages(20), page("Long", "a" * (17 << 20)), *many_pages(20), page("#", "", namespace=1)])
    )
    whole, _ = read(path)
    cleaned = []
    monkeypatch.setattr(reader, "clean_page", lambda title, *rest: cleaned.append(title) or title)
    monkeypatch.setattr(reader, "_BATCH_CHARACTERS", 1000)
    for start in (0, 7, 20, 21, 30, 41, 42):
        cleaned.clear()
        items, skipped = read(path, start=start)
        assert len(items) == 41 - start if start < 42 else items == []
        assert [str(item) for item in items if isinstance(item, DataError)] == [str(whole[20])] * (start < 21)
        assert len(cleaned) == len(items) - (start < 21)
        assert skipped == ({"pages of other namespaces": 1} if start < 42 else {})


def test_what_comes_before_the_damage_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_BATCH_CHARACTERS", 1000)
    path = tmp_path / "dump.xml"
    path.write_bytes(dump(many_pages(120))[:-30])
    for processes in (1, 2):
        texts = []
        reading = read_dump(str(path), CleanOptions(), name="dump.xml", processes=processes)
        with pytest.raises(DataError, match="not well-formed"):
            texts.extend(reading)  # which keeps what came before the error
        assert len(texts) == 119


def test_documents_of_a_dump(tiny):
    tally = Tally()
    options = ReadOptions(format="wikipedia")
    documents = list(read_documents([tiny], options, tally))
    assert [document.text for document in documents] == [text for text in TINY_TEXTS if text]
    assert all(document.num_bytes == len(document.text.encode()) for document in documents)
    assert (tally.documents, tally.empty, tally.faults) == (2, 1, 0) and tally.skipped["redirects"] == 1


def test_long_pages_and_damage_are_faults(tmp_path):
    path = tmp_path / "dump.xml"
    long = page("Long", "a" * (17 << 20))
    path.write_bytes(dump([page("A", "a"), long, page("B", "b")]))
    with pytest.raises(DataError) as caught:
        list(read_documents([path], ReadOptions(format="wikipedia")))
    assert one_line(caught.value, "the page 'Long' is longer than 16.0 MiB", "`on_error='skip'`")
    tally = Tally()
    skip = ReadOptions(format="wikipedia", on_error="skip")
    assert [document.text for document in read_documents([path], skip, tally)] == ["A\n\na", "B\n\nb"]
    assert tally.faults == 1
    path.write_bytes(dump([page("A", "a")])[:-5])
    assert [document.text for document in read_documents([path], skip, tally)] == ["A\n\na"]
    assert tally.faults == 2


@pytest.mark.parametrize("processes", [1, 2])
def test_list_items_whose_text_is_in_templates_are_counted(tmp_path, monkeypatch, processes):
    monkeypatch.setattr(reader, "_BATCHES_HERE", 1)
    monkeypatch.setattr(reader, "_BATCH_CHARACTERS", 1)
    path = tmp_path / "wiktionary.xml"
    entry = "A word.\n==Translations==\n* {{t|de|Wort}}\n# ''{{t|fr|mot}}''\n* Latin: verbum\n; {{t|la}}\n"
    path.write_bytes(dump(page(f"word {number}", entry) for number in range(10)))
    for lists, expected in (("keep", (20, 30)), ("drop", (0, 0))):
        tally = Tally()
        options = ReadOptions(format="wikipedia", cleaning=CleanOptions(lists=lists), processes=processes)
        assert len(list(read_documents([path], options, tally))) == 10
        assert (tally.skipped["empty list items"], tally.totals["empty list items"]) == expected


PROGRAM = """
import json, os, sys
from hornbook.wikipedia import reader
from hornbook.text.reading import CleanOptions
from hornbook.errors import HornbookError

def main():
    reader._BATCH_CHARACTERS, reader._BATCHES_HERE = 1000, 1
    texts = reader.read_dump(sys.argv[1], CleanOptions(), name="dump.xml", processes=2)
    for number, _ in enumerate(texts):
        if number == 40:
            children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
            print(json.dumps(children), flush=True)
            sys.stdin.readline()

if __name__ == "__main__":
    try:
        main()
    except HornbookError as error:
        print(f"one line: {error}")
"""


@pytest.fixture
def reading(tmp_path):
    """A process that has read some pages with two others and waits, and the numbers of those."""
    path, program = tmp_path / "dump.xml", tmp_path / "program.py"
    path.write_bytes(dump(many_pages(2000)))
    program.write_text(PROGRAM)
    words = [sys.executable, str(program), str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process, [int(number) for number in json.loads(process.stdout.readline())]
        process.kill()


def is_alive(number):
    try:
        return "zombie" not in Path(f"/proc/{number}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc to find children in")
def test_processes_end_with_the_one_that_started_them(reading):
    process, children = reading
    assert len(children) >= 2 and all(map(is_alive, children))
    process.kill()
    process.wait()
    deadline = time.monotonic() + 120
    while any(map(is_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, children))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc to find children in")
def test_a_killed_process_is_one_line(reading):
    process, children = reading
    for child in children:
        with contextlib.suppress(ProcessLookupError):  # one that saw the others die may be gone
            os.kill(child, signal.SIGKILL)
    printed, _ = process.communicate("\n", timeout=600)
    assert "one line: a process that cleans wikitext was killed" in printed
    assert 'in your own script, call hornbook below `if __name__ == "__main__":`' in printed
