r"""Plain text in its usual shapes: a file, a line, or what stands between blank lines is a document.

    text          "one\ntwo\n\nthree\n"   ->   "one\ntwo\n\nthree\n"
    lines         "one\ntwo\n\nthree\n"   ->   "one", "two", "three"
    blank-lines   "one\ntwo\n\nthree\n"   ->   "one\ntwo", "three"        BERT's: a sentence a line, documents apart

Lines lose the line end behind them (``\n`` or ``\r\n``), and so do documents between blank
lines. A line with nothing but white space is blank.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import BinaryIO, Final

from hornbook.errors import DataError
from hornbook.storage.system import format_bytes
from hornbook.text.reading import (
    BYTE_ORDER_MARK,
    Line,
    Outcome,
    ReadOptions,
    Source,
    line_too_long,
    plain_document,
    read_lines,
)

_MARKUP: Final = {b"<mediawiki ": "wikipedia", b"<doc id=": "wikiextractor"}
_PARSED_BYTES: Final = 1 << 20
_FIRST_KEY: Final = re.compile(rb'\{\s*"[^"\\]*(?:\\.[^"\\]*)*"\s*:')


class Passage:
    """Lines that are gathered, and taken as a document once the last of them is there."""

    def __init__(self, source: Source, options: ReadOptions) -> None:
        self._source, self._options = source, options
        self._first: Line | None = None
        self._data = bytearray()
        self._error: DataError | None = None

    def add(self, line: Line) -> None:
        """Gather a line; of a document that is too long, nothing is kept but where it began."""
        self._first = self._first or line
        if self._error is None:
            self._data += line.content or b""
            if line.content is None:
                self._error = line_too_long(self._place(line), self._options.max_line_bytes)
            elif len(self._data) > self._options.max_document_bytes:
                limit = format_bytes(self._options.max_document_bytes)
                begin = self._place(self._first)
                self._error = DataError(f"{begin}: a document of more than {limit} begins here; split it")
        if self._error is not None:
            self._data.clear()

    def take(self, finish: Callable[[bytes], bytes] = bytes) -> list[Outcome]:
        """Hand out what was gathered, after ``finish``, and begin anew; nothing comes of blank lines alone."""
        first, data, error = self._first, bytes(self._data), self._error
        self._first, self._error = None, None
        self._data.clear()
        if error is not None:
            return [error]
        if first is None or not data.strip():
            return []
        try:
            return [plain_document(finish(data), self._source, self._place(first), first.offset)]
        except DataError as unreadable:
            return [unreadable]

    def _place(self, line: Line) -> str:
        return f"{self._source}, line {line.number}"


def read_whole(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read a file as one document. Raises DataError unless it is UTF-8 and looks like text."""
    limit = options.max_document_bytes
    data = stream.read(limit + 1)
    if options.format == "auto":
        found = next((name for mark, name in _MARKUP.items() if data.startswith(mark)), None)
        if found or begins_with_object(data):
            what = "has articles of Wikipedia" if found else "begins with a JSON object"
            # a pipe has no name to leave it out by
            without = f", or leave it out by --exclude {shlex.quote(PurePath(source.name).name)}" if source.path else ""
            raise DataError(
                f"{source}: {what}; say --from {found or 'jsonl'}, or --from text to take it as it is{without}"
            )
    if len(data) > limit:
        raise DataError(
            f"{source}: holds more than {format_bytes(limit)}, but a plain file is one document; split it, put its "
            "documents into JSONL, or say how they are told apart (--from lines, --from blank-lines)"
        )
    start = len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0
    yield plain_document(data[start:], source, str(source), start)


def read_each_line(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read each line that is not blank as a document, without its end."""
    for number, offset, content in read_lines(stream, options.max_line_bytes):
        place = f"{source}, line {number}"
        if content is None:
            yield line_too_long(place, options.max_line_bytes)
        elif content.strip():
            try:
                yield plain_document(_without_end(content), source, place, offset)
            except DataError as error:
                yield error


def read_between_blank_lines(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read what stands between blank lines as documents, each without its last line end."""
    passage = Passage(source, options)
    for line in read_lines(stream, options.max_line_bytes):
        if line.content is None or line.content.strip():
            passage.add(line)
        else:
            yield from passage.take(_without_end)
    yield from passage.take(_without_end)


def begins_with_object(data: bytes) -> bool:
    """Tell whether the first line of a file is a JSON object, as in JSONL; of a long line the first key decides."""
    start = len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0
    if not data.startswith(b"{", start):
        return False
    first = data[start : start + _PARSED_BYTES + 1].split(b"\n", 1)[0]
    if len(first) > _PARSED_BYTES:
        return _FIRST_KEY.match(first) is not None
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _without_end(data: bytes) -> bytes:
    return data.removesuffix(b"\n").removesuffix(b"\r")
