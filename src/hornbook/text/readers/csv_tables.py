r"""CSV and TSV: the first row names the columns, each further row is a document, its text in one of them.

    id,text                              --field text
    1,"one, with a comma"           ->   Document("one, with a comma", offset 8)
    2,"two                          ->   Document("two\nlines", offset 30)
    lines"

CSV is quoted as RFC 4180 has it, TSV (text/tab-separated-values) has no quotes. Blank lines are passed over, an empty
field is an empty document, and the offset is the row's. A row has to have as many fields as the header, so that most
wrong quotes are found; a quote that is never closed costs the rest of the file.
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
"""Options of `csv.reader` by the suffix of the file."""


def read_table(suffix: str, stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read each row of a table as a document; ``suffix``, a key of ``TABLES``, says how it is written."""
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
    """Return the next row, its fields of up to ``limit`` characters; None behind the last. Raises csv.Error."""
    # by itself `csv` allows 128 KiB, and has one limit for the whole process, which is put back
    allowed = csv.field_size_limit(limit)
    try:
        return next(rows, None)
    finally:
        csv.field_size_limit(allowed)


def _next_row(rows: Iterator[list[str]], lines: "_Lines", num_fields: int | None = None) -> list[str] | None:
    """Return the next row, None behind the last; after an error, the one on the next line. Raises DataError."""
    lines.begin_row()
    try:
        row = next_of_any_size(rows, lines.limit)
    except csv.Error as error:
        raise DataError(f"{lines.place}: not a row of a table ({error}); mend the row, or its quotes") from error
    if row and num_fields not in (None, len(row)):
        found = counted(len(row), "field")
        raise DataError(f"{lines.place}: {found}, where the header has {num_fields}; mend the row, or its quotes")
    return row


class _Lines:
    """The lines of a table as text, for `csv.reader`, which asks for one more as long as a quote is open.

    Attributes:
        limit: bytes of a row, at most.
        offset: bytes before the row that was begun last.
        place: of that row, for errors.
    """

    def __init__(self, stream: BinaryIO, source: Source, limit: int) -> None:
        self.limit, self.offset, self.place = limit, 0, str(source)
        self._lines, self._source = read_lines(stream, limit), source
        self._num_bytes = 0

    def begin_row(self) -> None:
        """Take the next line that is not blank for the beginning of a row."""
        self._num_bytes = 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        while not self._num_bytes and line.content is not None and not line.content.strip():
            line = next(self._lines)
        place = f"{self._source}, line {line.number}"
        if not self._num_bytes:
            self.offset, self.place = line.offset, place
        if line.content is None:
            raise line_too_long(place, self.limit)
        self._num_bytes += len(line.content)
        if self._num_bytes > self.limit:
            raise DataError(f"{self.place}: a row of more than {format_bytes(self.limit)} begins here; mend its quotes")
        return plain_text(line.content, place, line.offset)
