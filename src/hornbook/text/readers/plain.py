r"""Plain text in its usual shapes: a file, a line, or what stands between blank lines is a document.

    text          "one\ntwo\n\nthree\n"   ->   "one\ntwo\n\nthree\n"
    lines         "one\ntwo\n\nthree\n"   ->   "one", "two", "three"
    blank-lines   "one\ntwo\n\nthree\n"   ->   "one\ntwo", "three"        BERT's: a sentence a line, documents apart

Text is taken as it is; lines lose the line end behind them (``\n`` or ``\r\n``), and so do documents between blank
lines. A line with nothing but white space is blank. The price of the first shape: a file has to fit into memory, so
it may have 128 MiB.
"""

import shlex
from collections.abc import Iterator
from pathlib import PurePath
from typing import BinaryIO, Final

from hornbook.errors import DataError
from hornbook.storage.system import format_bytes
from hornbook.text.readers.passages import Passage
from hornbook.text.readers.records import begins_with_object
from hornbook.text.readers.streams import BYTE_ORDER_MARK, line_too_long, plain_document, read_lines
from hornbook.text.reading import Outcome, ReadOptions, Source

_MARKUP: Final = {b"<mediawiki ": "wikipedia", b"<doc id=": "wikiextractor"}


def read_whole(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read a file as one document.

    Raises:
        DataError: it is not UTF-8, too long, or begins as JSONL or articles of Wikipedia do and nobody said that it is
            text.
    """
    limit = options.max_document_bytes
    data = stream.read(limit + 1)
    if options.format == "auto":
        _refuse_other_format(data, source)
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


def _refuse_other_format(data: bytes, source: Source) -> None:
    for mark, name in _MARKUP.items():
        if data.startswith(mark):
            raise _other_format(source, "has articles of Wikipedia", name)
    if begins_with_object(data):
        raise _other_format(source, "begins with a JSON object", "jsonl")


def _other_format(source: Source, what: str, name: str) -> DataError:
    """What to say of a file that looks like another format; only one of several files may be left out by its name."""
    without = f", or leave it out by --exclude {shlex.quote(PurePath(source.name).name)}" if source.path else ""
    return DataError(f"{source}: {what}; say --from {name}, or --from text to take it as it is{without}")


def _without_end(data: bytes) -> bytes:
    return data.removesuffix(b"\n").removesuffix(b"\r")
