"""Parquet: a column of text, row group by row group.

    web.parquet    text: string, url: string    --field text   ->   Document of row 0, of row 1, ...

Only the pages of that column are read, through a buffer, some rows at a time, whatever the size of a row group; a file
that gives out of all proportion more text than it is long is refused. Read with pyarrow, the extra ``arrow``, in a
child process; checksums of pages are verified where there are any.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hornbook.errors import DataError
from hornbook.formats.arrow import arrow_errors
from hornbook.formats.child import Record
from hornbook.text.readers.columns import (
    allowed_bytes,
    bounded,
    no_such_column,
    no_text,
    read_in_child,
    rows_of,
    to_records,
)
from hornbook.text.reading import Outcome, ReadOptions, Source

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

_BUFFER: Final = 1 << 20
_ROWS_AT_ONCE: Final = 256
_TEXT: Final = ("STRING", "NONE", "JSON", "ENUM")

read_parquet = read_in_child("parquet")
"""Read the text of each row; row groups before the row ``start`` are not read."""


def as_records(path: str, name: str, field: str, most: int, start: int) -> Iterator[Record]:
    """Read a file in the child; see ``read_in_child``."""
    return to_records(outcomes(Source(name, Path(path)), ReadOptions(field=field, max_document_bytes=most), start))


def outcomes(source: Source, options: ReadOptions, start: int) -> Iterator[Outcome]:
    """Read the text of each row from the row ``start`` on.

    Raises:
        DataError: the file is damaged, built to do harm, or has no such column, or one that holds no text.
        StorageError: it cannot be read.
    """
    assert source.path is not None, "it is no stream"
    with arrow_errors(source.path, str(source), "Parquet file", MemoryError):
        yield from bounded(_rows(source, options, start), source, allowed_bytes(source.path.stat().st_size))


def _rows(source: Source, options: ReadOptions, start: int) -> Iterator[Outcome]:
    """The rows of all row groups that do not end before the row ``start``, from that on."""
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(
        str(source.path), buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
    )
    _check_column(file.schema, source, options.field)
    row = 0
    for group in range(file.metadata.num_row_groups):
        end = row + file.metadata.row_group(group).num_rows
        if end > max(start, row):
            for batch in file.iter_batches(_ROWS_AT_ONCE, [group], [options.field], use_threads=False):
                dropped = min(max(0, start - row), batch.num_rows)
                yield from rows_of(_leaf(batch.column(0))[dropped:], source, options, row + dropped)
                row += batch.num_rows
            if row != end:
                raise DataError(f"{source}: its row group {group} does not end at row {end}; the file is damaged")
        row = end


def _check_column(schema: "pyarrow.parquet.ParquetSchema", source: Source, field: str) -> None:
    """Refuse a column that is not there, or is no text; of a column in a struct, the field is ``struct.column``."""
    columns = [schema.column(number) for number in range(len(schema))]
    names = [column.path for column in columns]
    if names.count(field) != 1:
        raise no_such_column(source, field, names)
    column = columns[names.index(field)]
    kind = column.logical_type.type
    if column.max_repetition_level:
        raise no_text(source, field, "list")
    if column.physical_type != "BYTE_ARRAY" or kind not in _TEXT:
        raise no_text(source, field, column.physical_type if kind == "NONE" else kind)


def _leaf(column: "pyarrow.Array") -> "pyarrow.Array":
    """The one column in a column of structs."""
    while column.type.num_fields == 1:
        column = column.flatten()[0]
    return column
