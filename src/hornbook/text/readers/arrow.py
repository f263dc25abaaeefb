"""Hugging Face data sets on the disk: a column of an ``.arrow`` file, as ``save_to_disk`` writes it.

    folder/data-00000-of-00002.arrow    batch of 1,000 rows | batch | ...    ->  documents, a row each

The file is mapped into memory and its rows are taken where they lie, so memory holds one of them. Only pyarrow is
needed, not ``datasets``. The price: files of other programs with compressed batches are refused, since nothing bounds
what they unpack to.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hornbook.errors import DataError
from hornbook.formats.arrow import import_pyarrow, open_stream
from hornbook.text.readers.columns import (
    BYTES_OF,
    allowed_bytes,
    as_bytes,
    bounded,
    no_such_column,
    no_text,
    rows_of,
    text_type,
)
from hornbook.text.reading import Outcome, ReadOptions, Source

if TYPE_CHECKING:
    import pyarrow


def read_arrow(source: Source, options: ReadOptions, start: int) -> Iterator[Outcome]:
    """Read the text of each row; batches before the row ``start`` are not looked at.

    Raises:
        UserError: pyarrow is not installed.
        DataError: the file is damaged, built to do harm, or has no such column, or one that holds no text.
        StorageError: it cannot be read.
    """
    if source.path is None:
        raise DataError("standard input cannot be read as Arrow, which is mapped into memory; save it to a file")
    with open_stream(source.path, str(source)) as stream:
        allowed = allowed_bytes(source.path.stat().st_size)
        yield from bounded(_rows(stream, source, options, start), source, allowed)


def _rows(
    stream: "pyarrow.RecordBatchStreamReader", source: Source, options: ReadOptions, start: int
) -> Iterator[Outcome]:
    """The rows of all batches that do not end before the row ``start``, from that on."""
    path = _path_of(stream.schema, source, options.field)
    first = 0
    for batch in stream:
        if first + batch.num_rows > start:
            column = _column(batch, path)
            column.validate(full=True)
            dropped = max(0, start - first)
            yield from rows_of(column[dropped:], source, options, first + dropped)
        first += batch.num_rows


def _path_of(schema: "pyarrow.Schema", source: Source, field: str) -> tuple[str, ...]:
    """The names that lead to a column of text, which may be one in a column of structs."""
    types = import_pyarrow().types
    path = (field,) if field in schema.names else tuple(field.split("."))
    if schema.names.count(path[0]) != 1:
        raise no_such_column(source, field, schema.names)
    kind = schema.field(path[0]).type
    for name in path[1:]:
        if not types.is_struct(kind) or kind.get_field_index(name) < 0:
            raise no_such_column(source, field, schema.names)
        kind = kind.field(name).type
    if str(text_type(kind)) not in BYTES_OF:
        raise no_text(source, field, kind)
    return path


def _column(batch: "pyarrow.RecordBatch", path: tuple[str, ...]) -> "pyarrow.Array":
    column = batch.column(batch.schema.names.index(path[0]))
    column.validate()  # that what is in it has the lengths that flattening takes for granted
    for name in path[1:]:
        column = column.flatten()[column.type.get_field_index(name)]
    return as_bytes(column)
