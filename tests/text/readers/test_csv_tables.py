import csv
import gzip
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_text import one_line

from hornbook.errors import DataError
from hornbook.text.documents import ReadOptions, Tally, offset_unit, read_documents

ROWS = 'id,text\r\n1,"one, with a comma"\r\n\r\n2,"two ""quoted""\nlines\n\n end"\r\n3,\r\n4,vier ü\r\n'


def read(path, tally=None, **options):
    return [(found.text, found.offset) for found in read_documents([path], ReadOptions(**options), tally)]


@pytest.fixture
def table(tmp_path):
    def write(text, name="t.csv"):
        (path := tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def test_rows_of_a_named_column(table):
    path, tally = table("\ufeff" + ROWS), Tally()
    expected = [("one, with a comma", 12), ('two "quoted"\nlines\n\n end', 37), ("vier ü", 73)]
    assert read(path, tally) == expected
    assert (tally.documents, tally.empty, tally.num_bytes) == (3, 1, 17 + 24 + 7)
    data = path.read_bytes()
    assert all(data[offset - 1 : offset] == b"\n" for _, offset in expected)
    assert [text for text, _ in read(path, field="id")] == ["1", "2", "3", "4"]
    assert offset_unit(str(path)) == "byte"


def test_packed_by_another_name_and_from_a_place_on(table):
    expected = read(table(ROWS))
    assert read(table(gzip.compress(ROWS.encode()), "t.csv.gz")) == expected
    assert read(table(ROWS, "t.txt"), format="csv") == expected


def test_tsv_has_no_quotes(table):
    path = table('label\tbody\n1\t"Hello" he said\n0\t"open, and\n', "t.tsv")
    assert read(path, field="body") == [('"Hello" he said', 11), ('"open, and', 29)]


def test_without_the_column_the_error_lists_those_there_are(table):
    path = table("id,title,body\n1,a,b\n")
    for options in ({}, {"field": "nope"}, {"on_error": "skip"}):
        tally = Tally()
        if options.get("on_error") == "skip":
            assert read(path, tally, **options) == []
            message = tally.messages[0]
        else:
            with pytest.raises(DataError) as caught:
                read(path, **options)
            message = str(caught.value)
        assert "(columns: 'id', 'title', 'body'); set `field` to the one with the text" in message
    with pytest.raises(DataError, match="several columns named 'body'"):
        read(table("body,body\n1,2\n"), field="body")


@pytest.mark.parametrize(
    ("rows", "part", "rest"),
    [
        (b"1,a\n2,b,c\n3,d\n", "line 3: 3 fields, but the header has 2", ["a", "d"]),
        (b"1,a\n2\n3,d\n", "line 3: 1 field, but the header has 2", ["a", "d"]),
        (b'1,a\n2,"b" c\n3,d\n', "line 3: not a valid row (',' expected after '\"')", ["a", "d"]),
        (b'1,a\n2,"b\n3,d\n', "line 3: not a valid row (unexpected end of data)", ["a"]),
        (b"1,a\n2,caf\xe9\n3,d\n", "line 3: not UTF-8 at byte 17 (0xe9)", ["a", "d"]),
        (b"1,a\n2,\0\n3,d\n", "line 3: a zero byte at offset 14", ["a", "d"]),
        (b"1,a\n2," + b"x" * 200 + b"\n3,d\n", "line 3: longer than 100 B", ["a", "d"]),
        (b'1,a\n2,"' + b"x,y\n" * 40 + b'"\n3,d\n', "line 3: a row longer than 100 B begins here", None),
    ],
)
def test_a_bad_row_is_one_error(table, rows, part, rest):
    path, tally = table(b"id,text\n" + rows), Tally()
    with pytest.raises(DataError) as caught:
        read(path, max_line_bytes=100)
    assert one_line(caught.value, str(path), part)
    found = [text for text, _ in read(path, tally, on_error="skip", max_line_bytes=100)]
    assert rest is None or (found == rest and tally.faults == 1)
    assert found[0] == "a"


def test_an_empty_table_and_a_header_alone(table):
    assert read(table("")) == read(table("\n \n")) == read(table("id,text\n")) == []


def test_a_long_field_and_the_limit_of_others(table):
    before = csv.field_size_limit()
    path = table("text,id\n" + "x" * 300_000 + ",1\n")
    assert [len(text) for text, _ in read(path)] == [300_000]
    assert csv.field_size_limit() == before


CELLS = st.text(st.sampled_from('ab",\n\r\t ü'), max_size=8)


@given(st.lists(st.tuples(CELLS, CELLS), max_size=8), st.integers(0, 8))
def test_what_csv_writes_comes_back_from_any_row_on(tmp_path_factory, rows, start):
    from hornbook.text.documents import Position, read_sources

    path = tmp_path_factory.mktemp("written") / "t.csv"
    stream = io.StringIO(newline="")
    csv.writer(stream).writerows([("id", "text"), *((f"#{cell}", text) for cell, text in rows)])
    path.write_bytes(stream.getvalue().encode())
    texts = [text for _, text in rows]
    assert [text for text, _ in read(path, keep_crlf=True)] == list(filter(None, texts))
    rest = read_sources([str(path)], ReadOptions(keep_crlf=True), Tally(), skip=Position(0, start))
    assert [found.text for found in rest] == list(filter(None, texts[start:]))


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_a_table_with_another_separator_is_recognized(table, mark):
    """As spreadsheets write it where a comma separates decimals."""
    with pytest.raises(
        DataError, match=rf"no column 'text' .*; the columns seem to be separated by {re.escape(repr(mark))}"
    ):
        read(table(f"id{mark}text\n1{mark}a\n"))
