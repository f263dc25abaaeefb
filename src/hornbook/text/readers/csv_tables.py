r"""CSV and TSV: the first row names the columns, every other row is a document whose text is in one column.

    id,text                              --field text
    1,"one, with a comma"           ->   Document("one, with a comma", offset 8)
    2,"two                          ->   Document("two\nlines", offset 30)
    lines"

CSV is quoted as in RFC 4180; TSV (text/tab-separated-values) has no quotes. Blank lines are skipped, an empty field is
an empty document, and the offset is that of the row. Every row must have as many fields as the header, which detects
most wrong quotes; a quote that is never closed makes the rest of the file one unreadable row.
"""

import csv
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from hornbook.errors import DataError
from hornbook.storage.system import format_bytes
from hornbook.text.readers.columns import no_such_column
from hornbook.text.reading import Document, Outcome, ReadOptions, Source, line_too_long, plain_text, read_lines
from hornbook.wording import counted

TABLES: Final[dict[str, dict[str, Any]]] = {
    ".csv": {"delimiter": ",", "strict": True},
    ".tsv": {"delimiter": "\t", "strict": True, "quoting": csv.QUOTE_NONE},
}
"""Options of `csv.reader`, by file suffix."""


def read_table(suffix: str, stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read each row of a table as a document; ``suffix`` is a key of ``TABLES``."""
    lines = _Lines(stream, source, options.max_line_bytes)
    rows = csv.reader(lines, **TABLES[suffix])
    header = _next_row(rows, lines)
    if header is None:
        return
    if header.count(options.field) != 1:
        raise no_such_column(source, options.field, header)
    column = header.index(options.field)
    while True:
        try:
            if (row := _next_row(rows, lines, len(header))) is None:
                return
            outcome: Outcome = Document(row[column], source.name, lines.offset, len(row[column].encode()))
        except DataError as error:
            outcome = error
        yield outcome


def next_of_any_size(rows: Iterator[list[str]], limit: int) -> list[str] | None:
    """Return the next row, with fields of up to ``limit`` characters, or None at the end. Raises csv.Error."""
    # csv's default limit is 128 KiB; the limit is global to the process, so restore it
    allowed = csv.field_size_limit(limit)
    try:
        return next(rows, None)
    finally:
        csv.field_size_limit(allowed)


def _next_row(rows: Iterator[list[str]], lines: "_Lines", num_fields: int | None = None) -> list[str] | None:
    """Return the next row, or None at the end. Raises DataError; the next call then starts at the next line."""
    lines.begin_row()
    try:
        row = next_of_any_size(rows, lines.limit)
    except csv.Error as error:
        raise DataError(f"{lines.where}: not a valid row ({error}); fix the row or its quotes") from error
    if row and num_fields not in (None, len(row)):
        found = counted(len(row), "field")
        raise DataError(f"{lines.where}: {found}, but the header has {num_fields}; fix the row or its quotes")
    return row


class _Lines:
    """The lines of a table as text, for `csv.reader`, which requests another line while a quote is open.

    Attributes:
        limit: maximum length of a row in bytes.
        offset: byte offset of the current row.
        where: file and line number of the current row, for errors.
    """

    def __init__(self, stream: BinaryIO, source: Source, limit: int) -> None:
        self.limit, self.offset, self.where = limit, 0, str(source)
        self._lines, self._source = read_lines(stream, limit), source
        self._num_bytes = 0

    def begin_row(self) -> None:
        """Let the next nonblank line begin a row."""
        self._num_bytes = 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        while not self._num_bytes and line.content is not None and not line.content.strip():
            line = next(self._lines)
        where = f"{self._source}, line {line.number}"
        if not self._num_bytes:
            self.offset, self.where = line.offset, where
        if line.content is None:
            raise line_too_long(where, self.limit)
        self._num_bytes += len(line.content)
        if self._num_bytes > self.limit:
            raise DataError(f"{self.where}: a row longer than {format_bytes(self.limit)} begins here; fix its quotes")
        return plain_text(line.content, where, line.offset)
