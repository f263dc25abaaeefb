"""What Parquet and Arrow share: a column of text, row by row, read in a child process.

    ["one", null, "three"]  ->  Document("one", offset 0), Document("", offset 1), Document("three", offset 2)

A row is a document, its offset the number of rows before it; one without a value is an empty document. pyarrow's own
check of UTF-8 knows whole columns only, so a column is looked at as bytes, and a bad row costs that row alone. A column
may name each text once, in a dictionary; it stays so, and a row's text is made when its turn comes.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from hornbook.errors import DataError
from hornbook.formats.arrow import import_pyarrow, shown
from hornbook.formats.child import Record, records
from hornbook.storage import Limits
from hornbook.storage.decompress import open_source
from hornbook.storage.system import format_bytes
from hornbook.text.reading import Document, Outcome, Reader, ReadOptions, Source, not_utf8

if TYPE_CHECKING:
    import pyarrow


_DOCUMENT: Final = b"d"
_ERROR: Final = b"e"
BYTES_OF: Final = {
    **dict.fromkeys(("string", "binary"), "binary"),
    **dict.fromkeys(("large_string", "large_binary"), "large_binary"),
    **dict.fromkeys(("string_view", "binary_view"), "binary_view"),
}
"""Arrow's types of text by their names, and the type of bytes that each may be looked at as, without a copy."""


def read_in_child(format_name: str) -> Reader:
    """Return the reader of a format, whose module's ``as_records`` runs in a child process.

    Args:
        format_name: ``"parquet"`` or ``"arrow"``.
    """

    def read(source: Source, options: ReadOptions, start: int) -> Iterator[Outcome]:
        if source.path is None:
            raise DataError(f"standard input cannot be read as {format_name.title()}; save it to a file")
        open_source(source.path).close()
        import_pyarrow(f"{format_name.title()} files")
        arguments = {
            "path": str(source.path),
            "name": source.name,
            "field": options.field,
            "most": options.max_document_bytes,
            "start": start,
        }
        module = f"hornbook.text.readers.{format_name}"
        for kind, row, content in records(module, "as_records", str(source), arguments, options.max_document_bytes):
            yield (
                Document(content.decode(), source.name, row, len(content))
                if kind == _DOCUMENT
                else DataError(content.decode())
            )

    return read


def to_records(outcomes: Iterator[Outcome]) -> Iterator[Record]:
    """Return what a child sends of documents and errors in place of documents."""
    for outcome in outcomes:
        if isinstance(outcome, Document):
            yield _DOCUMENT, outcome.offset, outcome.text.encode()
        else:
            yield _ERROR, 0, str(outcome).encode(errors="replace")


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


def text_type(kind: "pyarrow.DataType") -> "pyarrow.DataType":
    """The type of a column's values, which may be in a dictionary."""
    return kind.value_type if import_pyarrow().types.is_dictionary(kind) else kind


def as_bytes(column: "pyarrow.Array") -> Any:
    """A column of text, in a dictionary or not, as one of bytes, without a copy."""
    arrow = import_pyarrow()
    if arrow.types.is_dictionary(column.type):
        return arrow.DictionaryArray.from_arrays(column.indices, as_bytes(column.dictionary))
    return column.view(BYTES_OF[str(column.type)])


def allowed_bytes(size: int) -> int:
    """Most bytes of text that a file of some size may hold; a row without text counts as one."""
    limits = Limits()
    return max(limits.ratio_after, int(limits.ratio * size))


def bounded(rows: Iterator[Outcome], source: Source, allowed: int) -> Iterator[Outcome]:
    """Rows, as long as they are in proportion to their file.

    Raises:
        DataError: they have more than ``allowed`` bytes of text.
    """
    for row in rows:
        allowed -= 1 + (row.num_bytes if isinstance(row, Document) else 0)
        if allowed < 0:
            raise out_of_proportion(source)
        yield row


def out_of_proportion(source: Source) -> DataError:
    """What to say of a file that holds far more than its size."""
    return DataError(f"{source}: unpacks to over {Limits().ratio:g} times its size; unpack it first if you trust it")


def _as_binary(column: "pyarrow.Array", source: Source, field: str) -> Any:
    if str(text_type(column.type)) not in BYTES_OF:
        raise no_text(source, field, column.type)
    return as_bytes(column)
