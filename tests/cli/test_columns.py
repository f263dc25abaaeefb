"""Tables: a line a row for files and pipes, wrapped below its last column for a terminal."""

import io
import sys

import pytest

from hornbook.cli.table import column_lines, print_columns, wrap_line

ROWS = [
    ("name", "loss", ""),
    ("bits_per_byte", "2.25", "every byte scored: 1,234 bytes of 56 documents; windows of 24-token-long text"),
    ("\x1b[2J", "12.5", "short"),
]


def test_without_a_width_a_row_is_a_line():
    assert list(column_lines(ROWS, right={1}, indent="  ")) == [
        "  name           loss",
        f"  bits_per_byte  2.25  {ROWS[1][2]}",
        r"  \x1b[2J        12.5  short",
    ]


def test_the_last_column_wraps_below_itself():
    lines = list(column_lines(ROWS, right={1}, width=50))
    assert lines == [
        "name           loss",
        "bits_per_byte  2.25  every byte scored: 1,234",
        "                     bytes of 56 documents;",
        "                     windows of 24-token-long text",
        r"\x1b[2J        12.5  short",
    ]


def test_a_narrow_width_puts_the_last_cell_on_lines_of_its_own():
    rows = [("name", ""), ("a" * 30, "some words that do not fit beside the name")]
    assert list(column_lines(rows, width=40)) == [
        "name",
        "a" * 30,
        "    some words that do not fit beside",
        "    the name",
    ]


def test_wide_letters_take_two_columns():
    assert list(column_lines([("\u6f22\u5b57", "x"), ("abcde", "y")])) == ["\u6f22\u5b57   x", "abcde  y"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_only_a_terminal_has_a_width(stream, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(sys, "stdout", stream())
    print_columns(ROWS)
    assert len(sys.stdout.getvalue().splitlines()) == (5 if stream is Terminal else 3)


def test_a_line_is_wrapped_below_its_text():
    words = "one two three four five six seven"
    assert wrap_line(words, 24) == "one two three four five\nsix seven"
    assert wrap_line(f"  cell   {words}", 33) == f"  cell   one two three four five\n{' ' * 9}six seven"
    assert wrap_line("", 30) == ""
