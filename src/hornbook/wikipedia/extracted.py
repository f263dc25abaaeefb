"""Parsing of WikiExtractor's output into documents.

    <doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="Anarchism">
    Anarchism                                                                     the title again, removed if requested
                                                                      ->   Document text, offset of its first line
    Anarchism is a political philosophy ...
    </doc>

The only markup is lines that begin with ``<doc id="`` and lines ``</doc>``; ``&``, ``<`` and ``>`` between them are
escaped (https://github.com/attardi/wikiextractor). An article that has only its title is an empty document, the same as
when a dump is read.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from hornbook.errors import DataError
from hornbook.storage.system import format_bytes
from hornbook.wikipedia.dump import MAX_PAGE_BYTES

_OPENING: Final = re.compile(r'<doc id="[^"]*"[^>]* title="(.*)"[^"]*>')
_CLOSING: Final = b"</doc>"


@dataclass(kw_only=True)
class _Open:
    """The document being read."""

    title: str
    offset: int
    lines: list[bytes] = field(default_factory=list)
    size: int = 0


def read_extracted(stream: BinaryIO, name: str, *, titles: bool) -> Iterator[tuple[str, int] | DataError]:
    """Yield (text, offset of its ``<doc>`` line) of each document; ``titles`` keeps the first line, which is the title.

    Yields an error for a document that is too long or not UTF-8. Raises DataError if the file was not written by
    WikiExtractor, or is truncated.
    """
    document: _Open | None = None
    offset = number = 0
    while line := stream.readline(MAX_PAGE_BYTES + 1):
        number += 1
        where = f"{name}, line {number}"
        if line.startswith(b"<doc id="):
            if document is not None:
                raise DataError(f"{where}: a document begins inside another, before its </doc>; extract it again")
            match = _OPENING.fullmatch(line.decode(errors="replace").strip()[:65536])
            if match is None:
                raise DataError(
                    f'{where}: expected <doc id="..." url="..." title="...">, as in WikiExtractor; check `format`'
                )
            document = _Open(title=html.unescape(match[1]), offset=offset)
        elif line.strip() == _CLOSING and document is not None:
            yield _finish(document, where, titles)
            document = None
        elif document is not None:
            document.size += len(line)
            if document.size <= MAX_PAGE_BYTES:
                document.lines.append(line)
        elif line.strip():
            raise DataError(
                f'{where}: expected a line like <doc id="12" ... title="...">, as in WikiExtractor; check `format`'
            )
        offset += len(line)
    if document is not None:
        raise DataError(f"{name}: ends in the middle of a document (offset {document.offset}); extract it again")


def _finish(document: _Open, where: str, titles: bool) -> tuple[str, int] | DataError:
    if document.size > MAX_PAGE_BYTES:
        limit = format_bytes(MAX_PAGE_BYTES)
        return DataError(f"{where}: a document longer than {limit} ends here; skip it with `on_error='skip'`")
    try:
        text = html.unescape(b"".join(document.lines).decode()).strip("\n")
    except UnicodeDecodeError as error:
        return DataError(f"{where}: the document that ends here is not UTF-8 ({error.reason}); extract it again")
    first, _, rest = text.partition("\n")
    if first.strip() == document.title.strip() and not (titles and rest.strip()):
        text = rest.lstrip("\n") if rest.strip() else ""
    return text, document.offset
