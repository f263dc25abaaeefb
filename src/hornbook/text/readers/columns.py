"""What Parquet and Arrow share: a column of text, row by row.

    ["one", null, "three"]  ->  Document("one", offset 0), Document("", offset 1), Document("three", offset 2)

A row is a document, its offset the number of rows before it; one without a value is an empty document. pyarrow's own
check of UTF-8 knows whole columns only, so a column is looked at as bytes, and a bad row costs that row alone.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from hornbook.errors import DataError
from hornbook.storage import format_bytes
from hornbook.storage.arrow import import_pyarrow, shown
from hornbook.text.readers.streams import not_utf8
from hornbook.text.reading import Document, Outcome, ReadOptions, Source

if TYPE_CHECKING:
    import pyarrow


BYTES_OF: Final = {
    **dict.fromkeys(("string", "binary"), "binary"),
    **dict.fromkeys(("large_string", "large_binary"), "large_binary"),
    **dict.fromkeys(("string_view", "binary_view"), "binary_view"),
}
"""Arrow's types of text by their names, and the type of bytes that each may be looked at as, without a copy."""


def rows_of(column: "pyarrow.Array", source: Source, options: ReadOptions, first: int) -> Iterator[Outcome]:
    """The documents of a column, the first of which is in row ``first``.

    Raises:
        DataError: the column does not hold text.
    """
    for number, value in enumerate(_as_binary(column, source, options.field), first):
        content: bytes = value.as_py() or b""
        if len(content) > options.max_document_bytes:
            limit = format_bytes(options.max_document_bytes)
            yield DataError(f"{source}, row {number}: longer than {limit}; split the document")
            continue
        try:
            outcome: Outcome = Document(content.decode(), source.name, number, len(content))
        except UnicodeDecodeError as error:
            outcome = not_utf8(error, f"{source}, row {number}")
        yield outcome


def no_such_column(source: Source, field: str, names: Sequence[str]) -> DataError:
    """What to say where there is no column, or more than one, of the name that was given."""
    others = ", ".join(f"{name!r:.40}" for name in names[:8]) + ", ..." * (len(names) > 8)
    what = "several columns are called" if field in names else "no column"
    return DataError(
        f"{source}: {what} {field!r:.80} (columns: {others or 'none'}); name the one with the text by --field"
    )


def no_text(source: Source, field: str, kind: object) -> DataError:
    """What to say of a column of another type."""
    return DataError(f"{source}: the column {field!r:.80} is of type {shown(kind)}; expected text")


def _as_binary(column: "pyarrow.Array", source: Source, field: str) -> Any:
    arrow = import_pyarrow()
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if str(column.type) not in BYTES_OF:
        raise no_text(source, field, column.type)
    return column.view(BYTES_OF[str(column.type)])
