"""JSONL: each line an object, one of its fields the text.

    {"text": "one"}                               ->  Document("one", offset 0)
    {"text": "two", "id": 7}                      ->  Document("two", offset 16)
    {"meta": {"body": "three"}}    meta.body      ->  Document("three", offset 41)

Blank lines are passed over. The offset is the line's, since that of a text inside it would not find it again.
"""

import json
from collections.abc import Iterator
from typing import BinaryIO, Final

from hornbook.errors import DataError
from hornbook.text.readers.streams import decoded, line_too_long, read_lines
from hornbook.text.reading import Document, Outcome, ReadOptions, Source

JSONL_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
_NAMES: Final = {
    "str": "a string",
    "dict": "an object",
    "list": "an array",
    "NoneType": "null",
    "bool": "a boolean",
}


def read_jsonl(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read the text of each line that is not blank."""
    for number, offset, content in read_lines(stream, options.max_line_bytes):
        place = f"{source}, line {number}"
        if content is None:
            yield line_too_long(place, options.max_line_bytes)
        elif stripped := content.strip():
            try:
                text, num_bytes = _text_of(stripped, place, options.field)
                yield Document(text, source.name, offset, num_bytes)
            except DataError as error:
                yield error


def _text_of(line: bytes, place: str, field: str) -> tuple[str, int]:
    """The text in a line, and its length in UTF-8.

    Raises:
        DataError: the line is not UTF-8 or JSON, or its text is missing, no string, or not Unicode.
    """
    try:
        record = json.loads(decoded(line, place))
    except (ValueError, RecursionError) as error:  # a DataError is neither
        reason = " ".join(str(error).split())
        remedy = "for a plain text file use --from text"
        if line.startswith(b"["):
            remedy = "expected an object on each line, which `jq -c '.[]'` makes of an array"
        raise DataError(f"{place}: not valid JSON ({reason}); {remedy}") from error
    text = _value_of(record, field)
    if not isinstance(text, str):
        raise DataError(f"{place}: {_explain_missing(record, field)}")
    try:
        return text, len(text.encode())
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: character {error.start} of the text is half a surrogate pair; mend the line"
        ) from error


def _value_of(record: object, field: str) -> object:
    """What a record has in a field; ``a.b`` is the field b of the field a, unless a field is called ``a.b``."""
    if isinstance(record, dict) and field in record:
        return record[field]
    value = record
    for name in field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _explain_missing(record: object, field: str) -> str:
    if not isinstance(record, dict):
        return f"expected an object with a field {field!r}, found {_name_of(record)}"
    if (value := _value_of(record, field)) is not None or field in record:
        return f"the field {field!r} holds {_name_of(value)}; expected a string"
    names = ", ".join(f"{name!r:.40}" for name in list(record)[:8]) or "none"
    return f"no field {field!r} (fields: {names}); name the one with the text by --field"


def _name_of(value: object) -> str:
    """What JSON calls a value."""
    return _NAMES.get(type(value).__name__, "a number")
