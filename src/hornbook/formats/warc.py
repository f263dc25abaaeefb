r"""WARC, the format of web archives such as Common Crawl's (ISO 28500): a sequence of records.

    WARC/1.0\r\n                                        Record(offset 0, {"warc-type": "conversion", ...}, b"The text")
    WARC-Type: conversion\r\n
    Content-Length: 8\r\n
    \r\n
    The text\r\n\r\n

``.warc`` files have responses of servers, ``.wet`` files the text of pages and ``.wat`` files metadata. A record is
read only if it is wanted and not too long, so memory holds one.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, Final, NamedTuple

from hornbook.errors import DataError

MAGIC: Final = b"WARC/1."
_MAX_LINE: Final = 64 << 10
_MAX_LINES: Final = 1000
_SKIPPED_BLOCK: Final = 1 << 20
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")


class Record(NamedTuple):
    """A record.

    Attributes:
        offset: of the record in the uncompressed file, in bytes.
        headers: by name in lower case; the last one of a name counts.
        content: None if it was not wanted, or too long.
        size: length of the content in bytes.
    """

    offset: int
    headers: dict[str, str]
    content: bytes | None
    size: int


class Response(NamedTuple):
    """An HTTP response: its status, its headers by name in lower case, and its body as sent."""

    status: int
    headers: dict[str, str]
    body: bytes


def read_records(
    stream: BinaryIO, name: str, wanted: Callable[[Mapping[str, str]], bool], limit: int
) -> Iterator[Record]:
    """Yield the records of an uncompressed stream.

    Args:
        stream: the file.
        name: its name in errors.
        wanted: whether to read the content of a record with these headers.
        limit: the most bytes of content to read.

    Raises:
        DataError: a record is malformed or truncated.
    """
    reader = _Lines(stream, name)
    while (offset := reader.skip_blank_lines()) is not None:
        headers = reader.headers(offset)
        try:
            size = int(headers["content-length"])
        except (KeyError, ValueError):
            size = -1
        if size < 0:
            raise DataError(f"{name}: the record at byte {offset} has no Content-Length; restore the file")
        content = reader.take(size, offset, keep=size <= limit and wanted(headers))
        yield Record(offset, headers, content, size)


def read_headers_at(stream: BinaryIO, name: str, position: int, offset: int) -> tuple[dict[str, str], int]:
    """Skip to a record and return its headers and the position after them; memory holds only the headers.

    Args:
        stream: an uncompressed stream at ``position``.
        name: its name in errors.
        position: bytes before the stream's position, at most ``offset``.
        offset: of the record, see ``Record``.

    Raises:
        DataError: there is no record, or its headers are malformed or truncated.
    """
    reader = _Lines(stream, name, position)
    reader.take(offset - position, offset, keep=False)
    if reader.skip_blank_lines() != offset:
        raise DataError(f"{name}: there is no WARC record at byte {offset}; restore the file")
    return reader.headers(offset), reader.offset


def parse_response(content: bytes) -> Response | None:
    """Return an HTTP response; None if it is none."""
    head, _, body = content.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    match = re.match(r"HTTP/\d(?:\.\d)? (\d{3})", status)
    if match is None:
        return None
    pairs = (line.partition(":") for line in lines)
    return Response(int(match[1]), {key.strip().lower(): value.strip() for key, _, value in pairs}, body)


def decode_body(response: Response, limit: int) -> bytes | None:
    """Return the body with chunks joined and gzip or deflate removed; None if it is in another encoding.

    Raises DataError if the body is damaged, or longer than ``limit`` bytes.
    """
    body, encoding = response.body, response.headers.get("content-encoding", "").lower()
    if "chunked" in response.headers.get("transfer-encoding", "").lower():
        body = _joined_chunks(body)
    if encoding in ("gzip", "x-gzip", "deflate"):
        return _inflated(body, limit)
    return body if encoding in ("", "identity", "none", "utf-8") else None


def _joined_chunks(body: bytes) -> bytes:
    """Return the content of chunks; of a body that is not chunked, as some crawlers store it, the body."""
    parts, position = [], 0
    while match := _CHUNK_SIZE.match(body, position):
        size = int(match[1], 16)
        parts.append(body[match.end() : match.end() + size])
        position = match.end() + size
        position += 2 if body.startswith(b"\r\n", position) else 0
        if not size:
            break
    return b"".join(parts) if parts else body


def _inflated(body: bytes, limit: int) -> bytes:
    if not body or (body[:2] != b"\x1f\x8b" and body[:1] != b"\x78"):  # stored without its compression
        return body
    try:
        inflated = zlib.decompressobj(wbits=47).decompress(body, limit + 1)
    except zlib.error as error:
        raise DataError(f"corrupt compressed response ({error})") from error
    if len(inflated) > limit:
        raise DataError("the response is too long when unpacked")
    return inflated


class _Lines:
    """The lines and blocks of a stream, with their offset."""

    def __init__(self, stream: BinaryIO, name: str, offset: int = 0) -> None:
        self._stream, self._name, self.offset = stream, name, offset

    def skip_blank_lines(self) -> int | None:
        """Read up to the first line of a record, and return the offset of the record; None at the end."""
        while (line := self._line()) and not line.strip():
            pass
        if not line:
            return None
        offset = self.offset - len(line)
        if not line.startswith(MAGIC):
            raise DataError(
                f"{self._name}: expected a WARC record at byte {offset}, found {line[:20]!r}; the file is damaged, or "
                "not a WARC file"
            )
        return offset

    def headers(self, offset: int) -> dict[str, str]:
        """Read the lines up to a blank one."""
        lines: list[str] = []
        while line := self._line():
            if not line.endswith(b"\n") or len(lines) > _MAX_LINES:
                raise DataError(f"{self._name}: the headers of the record at byte {offset} are too long")
            text = line.decode(errors="replace").rstrip("\r\n")
            if not text:
                pairs = (each.partition(":") for each in lines)
                return {key.strip().lower(): value.strip() for key, _, value in pairs}
            if text[0] in " \t" and lines:
                lines[-1] += text
            else:
                lines.append(text)
        raise self._truncated(offset)

    def take(self, size: int, offset: int, *, keep: bool) -> bytes | None:
        """Read ``size`` bytes and return them if ``keep``."""
        parts, left = [], size
        while left:
            part = self._stream.read(min(left, _SKIPPED_BLOCK))
            if not part:
                raise self._truncated(offset)
            left -= len(part)
            if keep:
                parts.append(part)
        self.offset += size
        return b"".join(parts) if keep else None

    def _line(self) -> bytes:
        line = self._stream.readline(_MAX_LINE)
        self.offset += len(line)
        return line

    def _truncated(self, offset: int) -> DataError:
        return DataError(f"{self._name}: the record at byte {offset} is truncated; download the file again")
