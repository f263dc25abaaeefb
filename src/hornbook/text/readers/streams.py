r"""What the readers of text share: opening a source, its lines with their offsets, its bytes as text.

    b"one\r\ntwo"  ->  Line(1, 0, b"one\r\n"), Line(2, 5, b"two")

A line that is too long is met as one without content, and memory never holds it. The price: such a line is unpacked to
its end all the same, since what comes after it is wanted.
"""

import sys
from collections.abc import Callable, Iterator
from io import BufferedReader
from typing import BinaryIO, Final, NamedTuple, TypeAlias

from hornbook.errors import DataError
from hornbook.storage import open_text_source
from hornbook.storage.system import format_bytes
from hornbook.text.reading import Document, Outcome, Reader, ReadOptions, Source, after

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_SKIPPED_BLOCK: Final = 1 << 20
_MANY_BLANK: Final = 64
"""Blank lines in a row, from which on it pays to copy a buffer."""

StreamReader: TypeAlias = Callable[[BinaryIO, Source, ReadOptions], Iterator[Outcome]]


class Line(NamedTuple):
    """A line of a file, or some blank lines at once.

    Attributes:
        number: from 1 on, of the first of them.
        offset: bytes before it, after a byte-order mark.
        content: with its end; None if it is longer than allowed.
    """

    number: int
    offset: int
    content: bytes | None


def streamed(read: StreamReader) -> Reader:
    """The reader that opens a source, plain or compressed, for ``read``."""

    def reader(source: Source, options: ReadOptions, start: int) -> Iterator[Outcome]:
        with open_stream(source) as stream:
            yield from after(read(stream, source, options), start)

    return reader


def open_stream(source: Source) -> BinaryIO:
    """Open a source for bounded reading, see `hornbook.storage.open_text_source`."""
    return open_text_source(source.path or sys.stdin.buffer, name=str(source))


def read_lines(stream: BinaryIO, limit: int) -> Iterator[Line]:
    """The lines of a file, as they end with a newline, of at most ``limit`` bytes each.

    Behind 64 blank lines in a row, all that a buffer holds come as one ``Line``: a file may have billions of them.
    """
    number, offset, num_blank = 1, 0, 0
    while content := stream.readline(limit + 1):
        size = len(content)
        mark = len(BYTE_ORDER_MARK) if number == 1 and content.startswith(BYTE_ORDER_MARK) else 0
        if size > limit:
            size += _skip_line(stream, content)
            yield Line(number, offset, None)
        elif content := content[mark:]:
            yield Line(number, offset + mark, content)
        number, offset = number + 1, offset + size
        num_blank = num_blank + 1 if content.isspace() else 0
        if num_blank >= _MANY_BLANK and (blank := _buffered_blank_lines(stream)):
            yield Line(number, offset, blank)
            number, offset = number + blank.count(b"\n"), offset + len(blank)


def line_too_long(place: str, limit: int, remedy: str = "split the document") -> DataError:
    """What to say of a line without content."""
    return DataError(f"{place}: longer than {format_bytes(limit)}; {remedy}")


def plain_document(data: bytes, source: Source, place: str, offset: int) -> Document:
    """The document that plain bytes at an offset of the source are; raises as ``plain_text``."""
    return Document(plain_text(data, place, offset), source.name, offset, len(data))


def plain_text(data: bytes, place: str, offset: int) -> str:
    """The text of plain bytes at an offset of a source.

    Raises:
        DataError: they are not UTF-8, or hold a zero byte; the message begins with ``place``.
    """
    if (found := data.find(b"\0")) >= 0:
        raise DataError(
            f"{place}: a zero byte at offset {offset + found}, so it is binary or UTF-16, not UTF-8; convert it, or "
            "leave it out (--suffix, --exclude, --on-error skip)"
        )
    return decoded(data, place, offset)


def decoded(data: bytes, place: str, offset: int = 0) -> str:
    """The text of UTF-8.

    Raises:
        DataError: it is none; the message begins with ``place`` and counts bytes from ``offset``.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(error, place, offset) from error


def not_utf8(error: UnicodeDecodeError, place: str, offset: int = 0) -> DataError:
    """What to say of bytes that are no UTF-8; the message begins with ``place`` and counts from ``offset``."""
    where, found = offset + error.start, error.object[error.start]
    return DataError(
        f"{place}: not UTF-8 at byte {where} (0x{found:02x}); convert it, or leave it out "
        "(--suffix, --exclude, --on-error skip)"
    )


def _buffered_blank_lines(stream: BinaryIO) -> bytes:
    """Read the blank lines that a stream's buffer begins with; none where it has no buffer."""
    data = stream.peek() if isinstance(stream, BufferedReader) else b""
    num_blank = len(data) - len(data.lstrip())
    return stream.read(data.rfind(b"\n", 0, num_blank) + 1)


def _skip_line(stream: BinaryIO, begun: bytes) -> int:
    """Read to the end of a line that has begun, a block at a time; return how many bytes that took."""
    skipped, block = 0, begun
    while not block.endswith(b"\n") and (block := stream.readline(_SKIPPED_BLOCK)):
        skipped += len(block)
    return skipped
