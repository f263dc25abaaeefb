"""Parquet: a column of text, row group by row group.

    web.parquet    text: string, url: string    --field text   ->   Document of row 0, of row 1, ...

Only the pages of that column are read, through a buffer, and as many rows at once as cannot come to more than some tens
of megabytes (`hornbook.formats.parquet`), whatever the size of a row group; a file that gives out of all proportion
more text than it is long is refused. Read with pyarrow, the extra ``arrow``; checksums of pages are verified where
there are any. The price: pages of more than 128 MiB are refused, as fastparquet writes them for large row groups.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, Final

from hornbook.errors import DataError
from hornbook.formats.arrow import damage_told
from hornbook.formats.parquet import find_chunks, measure_pages
from hornbook.storage.decompress import open_source
from hornbook.text.readers.columns import allowed_bytes, bounded, no_such_column, no_text, out_of_proportion, rows_of
from hornbook.text.reading import Outcome, ReadOptions, Source

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

_BUFFER: Final = 1 << 20
_BUDGET: Final = 64 << 20
_MOST_ROWS: Final = 1024
_MOST_PAGE_BYTES: Final = 128 << 20
_TEXT: Final = ("STRING", "NONE", "JSON", "ENUM")


def read_parquet(source: Source, options: ReadOptions, start: int) -> Iterator[Outcome]:
    """Read the text of each row; row groups before the row ``start`` are not read.

    Raises:
        UserError: pyarrow is not installed, or there is no such file.
        DataError: the file is damaged, built to do harm, or has no such column, or one that holds no text.
        StorageError: it cannot be read.
    """
    if source.path is None:
        raise DataError("standard input cannot be read as Parquet, whose index is at the end; save it to a file")
    with (
        open_source(source.path) as stream,
        damage_told(source.path, str(source), "Parquet file", MemoryError),
    ):
        allowed = allowed_bytes(source.path.stat().st_size)
        yield from bounded(_rows(source, stream, options, start, allowed), source, allowed)


def _rows(source: Source, stream: BinaryIO, options: ReadOptions, start: int, allowed: int) -> Iterator[Outcome]:
    """The rows of all row groups that do not end before the row ``start``, from that on."""
    chunks = find_chunks(stream, options.field, str(source))
    file = _open(source)
    _check_column(file.schema, source, options.field)
    row = 0
    for group, chunk in enumerate(chunks):
        end = row + chunk.num_rows
        if chunk.num_rows and end > start:
            pages = measure_pages(stream, chunk, str(source), _MOST_PAGE_BYTES)
            if pages.num_bytes > allowed:
                raise out_of_proportion(source)
            at_once = max(1, min(_BUDGET // pages.row_bytes, _MOST_ROWS))
            for batch in file.iter_batches(at_once, [group], [options.field], use_threads=False):
                dropped = min(max(0, start - row), batch.num_rows)
                yield from rows_of(_leaf(batch.column(0))[dropped:], source, options, row + dropped)
                row += batch.num_rows
            if row != end:
                raise DataError(f"{source}: its row group {group} does not end at row {end}; the file is damaged")
        row = end


def _open(source: Source) -> "pyarrow.parquet.ParquetFile":
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(
        str(source.path), buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
    )


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
