"""JSONL: each line an object; as documents, one of its fields the text, or as the objects themselves.

    {"text": "one"}                               ->  Document("one", offset 0)     ("a.jsonl, line 1", {"text": "one"})
    {"text": "two", "id": 7}                      ->  Document("two", offset 16)    ...
    {"meta": {"body": "three"}}    meta.body      ->  Document("three", offset 41)

Of documents, blank lines are skipped, null is an empty one, as in Parquet, and the offset is the line's. A key that is
there twice counts as it does in Python, the last one wins, unless another ``load`` is given.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final, NamedTuple

from hornbook.errors import DataError
from hornbook.text.reading import Document, Outcome, ReadOptions, Source, line_too_long, read_lines

JSONL_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
_NAMES: Final = {"str": "a string", "dict": "an object", "list": "an array", "NoneType": "null", "bool": "a boolean"}
_MISSING: Final = object()
"""What is found in a field that an object does not have."""


class Remedies(NamedTuple):
    """What an error advises where a line is too long, not UTF-8, or not JSON."""

    too_long: str = "split the text"
    not_utf8: str = "convert the file"
    not_json: str = "mend the line"


MEND: Final = Remedies()
_OF_DOCUMENTS: Final = Remedies(
    too_long="split the document",
    not_utf8="convert it, or leave it out (--suffix, --exclude, --on-error skip)",
    not_json="for a plain text file use --from text",
)


def read_jsonl(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read the text of each line that is not blank."""
    for line in read_lines(stream, options.max_line_bytes):
        if line.content is None or not line.content.isspace():
            place = f"{source}, line {line.number}"
            try:
                content = line_text(line.content, place, options.max_line_bytes, _OF_DOCUMENTS)
                record = parse_object(content, place, json.loads, _OF_DOCUMENTS)
                text = text_or_null(record, options.field, place, "name the one with the text by --field") or ""
                outcome: Outcome = Document(text, source.name, line.offset, len(utf8_of(text, place)))
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
    remedies: Remedies = MEND,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, each with its place. Raises DataError if a line is malformed, with its place.

    Args:
        stream: the file, unpacked.
        name: of it, for errors.
        limit: bytes of a line.
        skip_blank: pass over blank lines, which are an error otherwise.
        load: parses a line; raises a ValueError.
        remedies: what errors advise.
    """
    for number, _, content in read_lines(stream, limit):
        place = f"{name}, line {number}"
        if content is None or not content.isspace():
            yield place, parse_object(line_text(content, place, limit, remedies), place, load, remedies)
        elif not skip_blank:
            raise DataError(f"{place}: the line is blank; remove it, or put an object there")


def line_text(content: bytes | None, place: str, limit: int, remedies: Remedies = MEND) -> str:
    """The text of a line, as it is. Raises DataError if it is not UTF-8, or was too long (None)."""
    if content is None:
        raise line_too_long(place, limit, remedies.too_long)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        found = f"byte {error.start} of the line (0x{content[error.start]:02x})"
        raise DataError(f"{place}: not UTF-8 at {found}; {remedies.not_utf8}") from error


def parse_object(
    line: str, place: str, load: Callable[[str], Any] = json.loads, remedies: Remedies = MEND
) -> dict[str, Any]:
    """The object that a line is. Raises DataError if it is not JSON, or no object."""
    try:
        record = load(line)
    except (ValueError, RecursionError) as error:
        remedy = _array_remedy(line) or remedies.not_json
        raise DataError(f"{place}: not valid JSON ({' '.join(str(error).split())}); {remedy}") from error
    if not isinstance(record, dict):
        remedy = _array_remedy(line) or "mend the line"
        raise DataError(f"{place}: expected an object, found {_name_of(record)}; {remedy}")
    return record


def text_in(record: dict[str, Any], field: str, place: str, remedy: str = "mend the line") -> str:
    """Return the text of an object's field, found as by ``text_or_null``. Raises DataError if there is none."""
    text = text_or_null(record, field, place, remedy)
    if text is None:
        raise _no_string(None, field, place)
    return text


def text_or_null(record: dict[str, Any], field: str, place: str, remedy: str = "mend the line") -> str | None:
    """Return the text of a field; ``a.b`` is the field b of the field a, unless one is called ``a.b``.

    None where that, or a field on the way to it, is null. Raises DataError, beginning with ``place``, if there is none,
    or no string; whether the string is Unicode is for ``utf8_of`` to tell.
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
        raise _no_string(text, field, place)
    names = ", ".join(f"{name!r:.40}" for name in list(record)[:8]) or "none"
    raise DataError(f"{place}: no field {field!r} (fields: {names}); {remedy}")


def utf8_of(text: str, place: str, what: str = "the text") -> bytes:
    """Encode a text. Raises DataError for half of a surrogate pair, which JSON can write."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: character {error.start} of {what} is half a surrogate pair, so it is no Unicode; mend it"
        ) from error


def _no_string(value: object, field: str, place: str) -> DataError:
    return DataError(f"{place}: the field {field!r} holds {_name_of(value)}; expected a string")


def _array_remedy(line: str) -> str:
    return "make a line of each object, as `jq -c '.[]'` does" * line.lstrip().startswith("[")


def _name_of(value: object) -> str:
    """What JSON calls a value."""
    return _NAMES.get(type(value).__name__, "a number")
