"""Hugging Face data sets on the disk: a column of an ``.arrow`` file, as ``save_to_disk`` writes it.

    folder/data-00000-of-00002.arrow    batch of 1,000 rows | batch | ...    ->  documents, a row each

The file is mapped into memory and its rows are taken where they lie, in a child process. Only pyarrow is needed, not
``datasets``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hornbook.formats.arrow import import_pyarrow, open_batches
from hornbook.formats.child import Record
from hornbook.text.readers.columns import (
    BYTES_OF,
    allowed_bytes,
    as_bytes,
    bounded,
    no_such_column,
    no_text,
    read_in_child,
    rows_of,
    text_type,
    to_records,
)
from hornbook.text.reading import Outcome, ReadOptions, Source

if TYPE_CHECKING:
    import pyarrow


read_arrow = read_in_child("arrow")
"""Read the text of each row; batches before the row ``start`` are not looked at."""


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
    with open_batches(source.path, str(source)) as (schema, batches):
        path = _path_of(schema, source, options.field)
        rows = _rows(batches, path, source, options, start)
        yield from bounded(rows, source, allowed_bytes(source.path.stat().st_size))


def _rows(
    batches: Iterator["pyarrow.RecordBatch"], path: tuple[str, ...], source: Source, options: ReadOptions, start: int
) -> Iterator[Outcome]:
    """The rows of all batches that do not end before the row ``start``, from that on."""
    first = 0
    for batch in batches:
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
