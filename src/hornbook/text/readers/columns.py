r"""Tables: the rows of a text column of Parquet, Arrow, CSV and TSV.

    web.parquet    text: string, url: string    --field text    ->   Document of row 0, of row 1, ...
    folder/data-00000-of-00002.arrow            written by ``save_to_disk``

Each row is a document whose offset is the row number; a null is an empty document. From a Parquet file only the pages
of this column are read, through a buffer, some rows at a time; an Arrow file is memory-mapped. pyarrow can only check
whole columns for UTF-8, so the column is viewed as bytes, and an invalid row makes only that row unreadable. A file
that yields implausibly more text than its size is an error. pyarrow, the extra ``arrow``, runs in a child process.

    id,text                              --field text
    1,"one, with a comma"           ->   Document("one, with a comma", offset 8)
    2,"two                          ->   Document("two\nlines", offset 30)
    lines"

CSV is quoted as in RFC 4180; TSV (text/tab-separated-values) has no quotes. Blank lines are skipped, an empty field is
an empty document, and the offset is that of the row in bytes. Every row must have as many fields as the header, which
detects most wrong quotes; a quote that is never closed makes the rest of the file one unreadable row.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from hornbook.errors import DataError
from hornbook.formats.arrow import arrow_errors, import_pyarrow, open_batches, shown
from hornbook.formats.child import Record, records
from hornbook.storage import Limits
from hornbook.storage.decompress import open_source
from hornbook.storage.system import format_bytes
from hornbook.text.reading import (
    Document,
    Outcome,
    ReadOptions,
    Source,
    line_too_long,
    not_utf8,
    plain_text,
    read_lines,
)
from hornbook.wording import counted

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet


_DOCUMENT: Final = b"d"
_ERROR: Final = b"e"
_BUFFER: Final = 1 << 20
_MOST_OFFERS: Final = 8
_LONGEST_OFFER: Final = 200
_ROWS_AT_ONCE: Final = 256
_PARQUET_TEXT: Final = ("STRING", "NONE", "JSON", "ENUM")
_BYTES_OF: Final = {
    **dict.fromkeys(("string", "binary"), "binary"),
    **dict.fromkeys(("large_string", "large_binary"), "large_binary"),
    **dict.fromkeys(("string_view", "binary_view"), "binary_view"),
}
"""The type of bytes as which each of Arrow's types of text can be viewed without a copy, by name."""
TABLES: Final[dict[str, dict[str, Any]]] = {
    ".csv": {"delimiter": ",", "strict": True},
    ".tsv": {"delimiter": "\t", "strict": True, "quoting": csv.QUOTE_NONE},
}
"""Options of `csv.reader`, by file suffix."""


def read_columns(format_name: str, source: Source, options: ReadOptions, start: int) -> Iterator[Outcome]:
    """Read the text of each row of a ``"parquet"`` or ``"arrow"`` file in a child process.

    Row groups and batches before the row ``start`` are not read.
    """
    if source.path is None:
        raise DataError(f"standard input cannot be read as {format_name.title()}; save it to a file")
    open_source(source.path).close()
    import_pyarrow(f"{format_name.title()} files")
    arguments = {
        "format_name": format_name,
        "path": str(source.path),
        "name": source.name,
        "field": options.field,
        "most": options.max_document_bytes,
        "start": start,
    }
    for kind, row, content in records(__name__, "as_records", str(source), arguments, options.max_document_bytes):
        text = content.decode()
        yield Document(text, source.name, row, len(content)) if kind == _DOCUMENT else DataError(text)


def as_records(format_name: str, path: str, name: str, field: str, most: int, start: int) -> Iterator[Record]:
    """Yield the outcomes of a file as records, in the child process of ``read_columns``."""
    options = ReadOptions(field=field, max_document_bytes=most)
    for outcome in outcomes(format_name, Source(name, Path(path)), options, start):
        if isinstance(outcome, Document):
            yield _DOCUMENT, outcome.offset, outcome.text.encode()
        else:
            yield _ERROR, 0, str(outcome).encode(errors="replace")


def outcomes(format_name: str, source: Source, options: ReadOptions, start: int) -> Iterator[Outcome]:
    """Read the text of each row from row ``start`` on, in this process.

    Raises:
        DataError: the file is damaged, has implausibly more text than its size, or has no such column of text.
    """
    assert source.path is not None, "not a stream"
    limits = Limits()
    allowed = max(limits.ratio_after, int(limits.ratio * source.path.stat().st_size))
    for row in (_parquet_rows if format_name == "parquet" else _arrow_rows)(source, source.path, options, start):
        allowed -= 1 + (row.num_bytes if isinstance(row, Document) else 0)
        if allowed < 0:
            raise DataError(
                f"{source}: unpacks to over {limits.ratio:g} times its size; if you trust it, unpack it first"
            )
        yield row


def no_such_column(source: Source, field: str, names: Sequence[str]) -> DataError:
    """Return the error for a name that no column of text, or more than one, has; ``names`` are those to offer."""
    once = [name for name, count in Counter(names).items() if count == 1 and len(name) <= _LONGEST_OFFER]
    others = ", ".join(map(repr, once[:_MOST_OFFERS])) + ", ..." * (len(once) > _MOST_OFFERS)
    what = "several columns named" if field in names else "no column"
    advice = "set `field` to the one with the text" if others else "expected one with the text"
    if len(names) == 1 and (mark := next((mark for mark in ";\t|" if mark in names[0]), None)):
        advice = f"the columns seem to be separated by {mark!r}: write the table with commas (csv) or tabs (tsv)"
    return DataError(f"{source}: {what} {field!r:.80} (columns: {others or 'none with text'}); {advice}")


def _parquet_rows(source: Source, path: Path, options: ReadOptions, start: int) -> Iterator[Document | DataError]:
    """Read row group by row group; the field of a column in a struct is ``struct.column``."""
    import pyarrow.parquet

    with arrow_errors(path, str(source), "Parquet file", MemoryError):
        file = pyarrow.parquet.ParquetFile(
            str(path), buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
        )
        _check_parquet_column(file.schema, source, options.field)
        row = 0
        for group in range(file.metadata.num_row_groups):
            end = row + file.metadata.row_group(group).num_rows
            if end > max(start, row):
                for batch in file.iter_batches(_ROWS_AT_ONCE, [group], [options.field], use_threads=False):
                    dropped = min(max(0, start - row), batch.num_rows)
                    # a name selects whatever starts with it and a dot, such as other columns with dots in their names
                    column = batch.column(max(0, batch.schema.get_field_index(options.field)))
                    while column.type.num_fields == 1:  # a struct, of which only this column was read
                        column = column.flatten()[0]
                    yield from _rows_of(column[dropped:], source, options, row + dropped)
                    row += batch.num_rows
                if row != end:
                    raise DataError(f"{source}: row group {group} does not end at row {end}; the file is damaged")
            row = end


def _check_parquet_column(schema: "pyarrow.parquet.ParquetSchema", source: Source, field: str) -> None:
    columns = [schema.column(number) for number in range(len(schema))]
    found = [column for column in columns if column.path == field]
    if len(found) != 1:
        names = [column.path for column in columns if _parquet_type(column) == "text"]
        raise no_such_column(source, field, [*names, *(column.path for column in found)])
    if (kind := _parquet_type(found[0])) != "text":
        raise _no_text(source, field, kind)


def _parquet_type(column: Any) -> str:
    """Return ``"text"`` for a column that can be read, else the name of its type."""
    kind = column.logical_type.type
    if column.max_repetition_level:
        return "list"
    is_text = column.physical_type == "BYTE_ARRAY" and kind in _PARQUET_TEXT
    return "text" if is_text else str(column.physical_type if kind == "NONE" else kind)


def _arrow_rows(source: Source, path: Path, options: ReadOptions, start: int) -> Iterator[Document | DataError]:
    first = 0
    with open_batches(path, str(source)) as (schema, batches):
        names = _find_arrow_column(schema, source, options.field)
        for batch in batches:
            if first + batch.num_rows > start:
                column = batch.column(batch.schema.names.index(names[0]))
                column.validate()  # flattening does not check the lengths of children
                for name in names[1:]:
                    column = column.flatten()[column.type.get_field_index(name)]
                column = _as_bytes(column)
                column.validate(full=True)
                dropped = max(0, start - first)
                yield from _rows_of(column[dropped:], source, options, first + dropped)
            first += batch.num_rows


def _find_arrow_column(schema: "pyarrow.Schema", source: Source, field: str) -> tuple[str, ...]:
    """Return the path of names to a column of text, which may be inside structs."""
    path = _names_in(schema, field)
    kind = _arrow_type(schema, path)
    if kind is None:
        offers = [".".join(names) for names in _text_columns(schema) if _names_in(schema, ".".join(names)) == names]
        raise no_such_column(source, field, [*offers, *(name for name in schema.names if name == field)])
    if _text_type(kind) not in _BYTES_OF:
        raise _no_text(source, field, kind)
    return path


def _names_in(schema: "pyarrow.Schema", field: str) -> tuple[str, ...]:
    """Return the path of names for a field: ``a.b`` is in the struct ``a`` unless a column is named ``a.b``."""
    return (field,) if field in schema.names else tuple(field.split("."))


def _arrow_type(schema: "pyarrow.Schema", path: tuple[str, ...]) -> "pyarrow.DataType | None":
    """Return the type of a column, which may be inside structs; None if there is none, or several of the name."""
    if schema.names.count(path[0]) != 1:
        return None
    kind = schema.field(path[0]).type
    for name in path[1:]:
        if not import_pyarrow().types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def _text_columns(fields: Iterable["pyarrow.Field"]) -> Iterator[tuple[str, ...]]:
    """Yield the path of names to each column of text, also inside structs."""
    for field in fields:
        if import_pyarrow().types.is_struct(field.type):
            inner = (field.type.field(number) for number in range(field.type.num_fields))
            yield from ((field.name, *names) for names in _text_columns(inner))
        elif _text_type(field.type) in _BYTES_OF:
            yield (field.name,)


def _rows_of(
    column: "pyarrow.Array", source: Source, options: ReadOptions, first: int
) -> Iterator[Document | DataError]:
    """Yield the documents of a column that starts at row ``first``."""
    if _text_type(column.type) not in _BYTES_OF:
        raise _no_text(source, options.field, column.type)
    for number, value in enumerate(_as_bytes(column), first):
        content: bytes = value.as_py() or b""
        if len(content) > options.max_document_bytes:
            limit = format_bytes(options.max_document_bytes)
            yield DataError(f"{source}, row {number}: longer than {limit}; split the document")
            continue
        try:
            yield Document(content.decode(), source.name, number, len(content))
        except UnicodeDecodeError as error:
            yield not_utf8(error, f"{source}, row {number}")


def _text_type(kind: "pyarrow.DataType") -> str:
    """Return the name of the type of a column's values, also for a dictionary-encoded column."""
    return str(kind.value_type if import_pyarrow().types.is_dictionary(kind) else kind)


def _as_bytes(column: "pyarrow.Array") -> Any:
    """View a column of text as bytes; a dictionary-encoded column remains one, so each text is stored once."""
    arrow = import_pyarrow()
    if arrow.types.is_dictionary(column.type):
        return arrow.DictionaryArray.from_arrays(column.indices, _as_bytes(column.dictionary))
    return column.view(_BYTES_OF[str(column.type)])


def _no_text(source: Source, field: str, kind: object) -> DataError:
    return DataError(f"{source}: the column {field!r:.80} is of type {shown(kind)}; expected text")


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
