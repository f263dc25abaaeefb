"""JSONL: each line an object, one of its fields the text.

    {"text": "one"}                               ->  Document("one", offset 0)
    {"text": "two", "id": 7}                      ->  Document("two", offset 16)
    {"meta": {"body": "three"}}    meta.body      ->  Document("three", offset 41)

Blank lines are passed over, and null is an empty document, as in Parquet. The offset is the line's, since that of a
text inside it would not find it again.
"""

import json
from collections.abc import Iterator
from typing import BinaryIO, Final

from hornbook.errors import DataError
from hornbook.text.readers.records import Remedies, line_text, parse_object, text_or_null, utf8_of
from hornbook.text.reading import Document, Outcome, ReadOptions, Source, read_lines

JSONL_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
_REMEDIES: Final = Remedies(
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
                content = line_text(line.content, place, options.max_line_bytes, _REMEDIES)
                record = parse_object(content, place, json.loads, _REMEDIES)
                text = text_or_null(record, options.field, place, "name the one with the text by --field") or ""
                outcome: Outcome = Document(text, source.name, line.offset, len(utf8_of(text, place)))
            except DataError as error:
                outcome = error
            yield outcome
