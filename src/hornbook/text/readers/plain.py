r"""Plain text: a document is a file, a line, or the text between blank lines.

    text          "one\ntwo\n\nthree\n"   ->   "one\ntwo\n\nthree\n"
    lines         "one\ntwo\n\nthree\n"   ->   "one", "two", "three"
    blank-lines   "one\ntwo\n\nthree\n"   ->   "one\ntwo", "three"        BERT's corpora: one sentence per line
    wikitext      " \n = Robert Boulter = \n \n Robert ... \n \n = Du Fu = \n \n Du Fu ..."      two articles

The last line end (``\n`` or ``\r\n``) of a line, or of a document between blank lines, is not part of it. A line of
white space is blank.

An article of WikiText (Merity et al., "Pointer Sentinel Mixture Models", 2016) begins with a line `` = Title = ``
between blank lines, or between a blank line and the start or end of the file, as for systems A and B; the test split
has similar lines inside paragraphs, from broken formulas. The concatenated documents are the file, except for blank
lines before the first title.
"""

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from pathlib import PurePath
from typing import BinaryIO, Final

from hornbook.errors import DataError
from hornbook.formats.foreign import SUFFIXES, name_content
from hornbook.formats.warc import MAGIC
from hornbook.storage.system import format_bytes, read_at_most
from hornbook.text.reading import (
    BYTE_ORDER_MARK,
    Document,
    Line,
    LineOf,
    Outcome,
    ReadOptions,
    Source,
    line_too_long,
    plain_document,
    read_lines,
)

_MARKS: Final = {
    b"<mediawiki ": ("has articles of Wikipedia", "wikipedia"),
    b"<doc id=": ("has articles of Wikipedia", "wikiextractor"),
    MAGIC: ("is a web archive", "warc"),
}
_PARSED_BYTES: Final = 1 << 20
_FIRST_KEY: Final = re.compile(rb'\{\s*"[^"\\]*(?:\\.[^"\\]*)*"\s*:')
_TITLE: Final = re.compile(rb" ?= (?!= )[^\n]*(?<! =) = ?\r?\n?")
_LONGEST_TITLE: Final = 4096


class Passage:
    """A buffer of lines that become one document."""

    def __init__(self, source: Source, options: ReadOptions) -> None:
        self._source, self._options = source, options
        self._first: Line | None = None
        self._data = bytearray()
        self._error: DataError | None = None

    def add(self, line: Line) -> None:
        """Append a line; a document that exceeds the limit becomes an error, and its text is dropped."""
        self._first = self._first or line
        if self._error is None:
            self._data += line.content or b""
            if line.content is None:
                self._error = line_too_long(self._where(line), self._options.max_line_bytes)
            elif len(self._data) > self._options.max_document_bytes:
                limit = format_bytes(self._options.max_document_bytes)
                begin = self._where(self._first)
                self._error = DataError(f"{begin}: a document longer than {limit} begins here; split it")
        if self._error is not None:
            self._data.clear()

    def take(self, finish: Callable[[bytes], bytes] = bytes) -> list[Outcome]:
        """Return the document of the lines, or its error, and empty the buffer; blank lines alone give nothing.

        ``finish`` is applied to the bytes first.
        """
        first, data, error = self._first, bytes(self._data), self._error
        self._first, self._error = None, None
        self._data.clear()
        if error is not None:
            return [error]
        if first is None or not data.strip():
            return []
        try:
            return [plain_document(finish(data), self._source, self._where(first), first.offset)]
        except DataError as unreadable:
            return [unreadable]

    def _where(self, line: Line) -> str:
        return f"{self._source}, line {line.number}"


def read_whole(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read a file as one document.

    Raises:
        DataError: it is not UTF-8 or too long; or the format is ``"auto"`` and it looks like JSONL, Wikipedia or a web
            archive.
    """
    limit = options.max_document_bytes
    data = read_at_most(stream, limit + 1)
    if options.format == "auto":
        suffix = PurePath(source.name).suffix
        if suffix in SUFFIXES and (foreign := name_content(data, suffix)):
            raise DataError(f"{source} is {foreign}")
        found = next((named for mark, named in _MARKS.items() if data.startswith(mark)), None)
        if found is None and begins_with_object(data):
            found = ("begins with a JSON object", "jsonl")
        if found:
            what, name = found
            # standard input has no name that --exclude could match
            without = f", or skip it with `exclude={PurePath(source.name).name!r}`" if source.path else ""
            raise DataError(
                f"{source}: {what}; use `format={name!r}`, or `format='text'` to read it as plain text{without}"
            )
    if len(data) > limit:
        raise DataError(
            f"{source}: more than {format_bytes(limit)}, but a text file is one document; split the file, or read "
            "several documents from it (`format='lines'`, blank-lines or jsonl)"
        )
    start = len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0
    yield plain_document(data[start:], source, str(source), start)


def read_each_line(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read each nonblank line, without its line end, as a document."""
    for number, offset, content in read_lines(stream, options.max_line_bytes, source.span.start if source.span else 0):
        where = LineOf(source, number)
        if content is None:
            yield line_too_long(where, options.max_line_bytes)
        elif content.strip():
            try:
                yield plain_document(_without_end(content), source, where, offset)
            except DataError as error:
                yield error


def read_between_blank_lines(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read the text between blank lines, without its last line end, as a document."""
    passage = Passage(source, options)
    for line in read_lines(stream, options.max_line_bytes):
        if line.content is None or line.content.strip():
            passage.add(line)
        else:
            yield from passage.take(_without_end)
    yield from passage.take(_without_end)


def begins_with_object(data: bytes) -> bool:
    """Return whether the first line is a JSON object, as in JSONL; of a line over 1 MiB, test only the first key."""
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


def read_wikitext(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read the articles of a WikiText file; nonblank text before the first title is also a document.

    A file with text but no title is not WikiText and gives an error.
    """
    passage = Passage(source, options)
    after_blank, has_title = True, False
    for line, following in pairwise(chain(read_lines(stream, options.max_line_bytes), (None,))):
        assert line is not None, "None is the last"
        content = line.content or b""
        is_title = len(content) <= _LONGEST_TITLE and _TITLE.fullmatch(content) is not None
        if after_blank and is_title and (following is None or _is_blank(following)):
            yield from passage.take()
            has_title = True
        passage.add(line)
        after_blank = _is_blank(line)
    rest = passage.take()
    if rest and isinstance(rest[0], Document) and not has_title:
        rest = [DataError(f"{source}: no line is a title of WikiText, ` = Title = `; use another `format`")]
    yield from rest


def _is_blank(line: Line) -> bool:
    return line.content is not None and not line.content.strip()
