"""JSONL, one object per line: read as documents, whose text is one of the fields, or as objects.

    {"text": "one"}                               ->  Document("one", offset 0)     ("a.jsonl, line 1", {"text": "one"})
    {"text": "two", "id": 7}                      ->  Document("two", offset 16)    ...
    {"meta": {"body": "three"}}    meta.body      ->  Document("three", offset 41)

When reading documents, blank lines are skipped, null is an empty document, as in Parquet, and the offset is that of the
line. If a key occurs twice, the last value wins, as in Python's ``json``, unless another ``load`` is given.
"""

import codecs
import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final, NamedTuple

from hornbook.errors import DataError
from hornbook.text.reading import CONVERT, Document, LineOf, Outcome, ReadOptions, Source, line_too_long, read_lines

JSONL_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
_NAMES: Final = {"str": "a string", "dict": "an object", "list": "an array", "NoneType": "null", "bool": "a boolean"}
_MISSING: Final = object()
"""The value of a field that an object does not have."""


class Remedies(NamedTuple):
    """The advice in the errors for lines that are too long, not UTF-8, or not JSON."""

    too_long: str = "split the text"
    not_utf8: str = CONVERT
    not_json: str = "fix the line"


FIX_LINE: Final = Remedies()
_FOR_DOCUMENTS: Final = Remedies(
    too_long="split the document",
    not_utf8=f"{CONVERT}, or skip it (`suffixes`, `exclude`, `on_error='skip'`)",
    not_json="for a plain text file use `format='text'`",
)


def read_jsonl(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read the text field of each nonblank line as a document."""
    for line in read_lines(stream, options.max_line_bytes, source.span.start if source.span else 0):
        if line.content is None or not line.content.isspace():
            where = LineOf(source, line.number)
            try:
                content = line_text(line.content, where, options.max_line_bytes, _FOR_DOCUMENTS)
                record = parse_object(content, where, json.loads, _FOR_DOCUMENTS)
                text = text_or_null(record, options.field, where, "set `field` to the one with the text") or ""
                outcome: Outcome = Document(text, source.name, line.offset, len(utf8_of(text, where)))
            except DataError as error:
                outcome = error
            yield outcome


def read_objects(
    stream: BinaryIO,
    name: str,
    limit: int,
    *,
    skip_blank: bool,
    load: Callable[[str], Any] = json.loads,
    remedies: Remedies = FIX_LINE,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file and line number, object) for each line. Raises DataError if a line is malformed.

    Args:
        stream: the decompressed file.
        name: the name of the file in errors.
        limit: maximum length of a line in bytes.
        skip_blank: skip blank lines, which otherwise are an error.
        load: parses a line; may raise ValueError.
        remedies: the advice in errors.
    """
    for number, _, content in read_lines(stream, limit):
        where = f"{name}, line {number}"
        if content is None or not content.isspace():
            yield where, parse_object(line_text(content, where, limit, remedies), where, load, remedies)
        elif not skip_blank:
            raise DataError(f"{where}: the line is blank; remove it, or write an object")


def line_text(content: bytes | None, where: object, limit: int, remedies: Remedies = FIX_LINE) -> str:
    """Decode a line. Raises DataError if it is not UTF-8, or exceeded the limit (None)."""
    if content is None:
        raise line_too_long(where, limit, remedies.too_long)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        found = f"byte {error.start} of the line (0x{content[error.start]:02x})"
        is_utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # of Windows' shells
        remedy = "convert it by `iconv -f utf-16 -t utf-8`" if is_utf_16 else remedies.not_utf8
        raise DataError(f"{where}: not UTF-8 at {found}; {remedy}") from error


def parse_object(
    line: str, where: object, load: Callable[[str], Any] = json.loads, remedies: Remedies = FIX_LINE
) -> dict[str, Any]:
    """Parse a line as a JSON object. Raises DataError if it is not one."""
    try:
        record = load(line)
    except (ValueError, RecursionError) as error:
        remedy = _array_remedy(line) or remedies.not_json
        raise DataError(f"{where}: not valid JSON ({' '.join(str(error).split())}); {remedy}") from error
    if not isinstance(record, dict):
        remedy = _array_remedy(line) or "fix the line"
        raise DataError(f"{where}: expected an object, found {_name_of(record)}; {remedy}")
    return record


def text_in(record: dict[str, Any], field: str, where: object, remedy: str = "fix the line") -> str:
    """Return the string in a field, found as by ``text_or_null``. Raises DataError if there is none."""
    text = text_or_null(record, field, where, remedy)
    if text is None:
        raise _no_string(None, field, where)
    return text


def text_or_null(record: dict[str, Any], field: str, where: object, remedy: str = "fix the line") -> str | None:
    """Return the string in a field; ``a.b`` is the field b of the field a unless a field is named ``a.b``.

    Returns None if the value, or that of a field on the path to it, is null. Raises DataError, with ``where`` as
    prefix, if the field is missing or not a string. The string may have lone surrogates, see ``utf8_of``.
    """
    text: Any = record
    if field in record:
        text = record[field]
    else:
        for name in field.split("."):
            if text is None:
                break
            text = text.get(name, _MISSING) if isinstance(text, dict) else _MISSING
    if text is None or isinstance(text, str):
        return text
    if text is not _MISSING:
        raise _no_string(text, field, where)
    names = ", ".join(f"{name!r:.40}" for name in list(record)[:8]) or "none"
    raise DataError(f"{where}: no field {field!r} (fields: {names}); {remedy}")


def utf8_of(text: str, where: object, what: str = "the text") -> bytes:
    """Encode a text in UTF-8. Raises DataError for a lone surrogate, which JSON can contain."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: character {error.start} of {what} is half a surrogate pair, which is not valid Unicode; fix it"
        ) from error


def _no_string(value: object, field: str, where: object) -> DataError:
    return DataError(f"{where}: the field {field!r} holds {_name_of(value)}; expected a string")


def _array_remedy(line: str) -> str:
    return "write one object per line, for example with `jq -c '.[]'`" * line.lstrip().startswith("[")


def _name_of(value: object) -> str:
    """Return JSON's name for the type of a value."""
    return _NAMES.get(type(value).__name__, "a number")
