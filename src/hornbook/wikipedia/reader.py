"""Articles of MediaWiki's dumps and WikiExtractor's ``<doc>`` blocks as documents.

Of a dump, this process parses XML, and worker processes clean wikitext:

    blocks -> pages -> articles -> batches of 1 MB -> clean, clean, clean -> (text, offset), in the order of the dump

The first 8 MB are cleaned in this process, since starting workers takes longer. A few batches are submitted ahead and
collected in order, so the result does not depend on the number of processes, and memory holds only these batches.

WikiExtractor's output (https://github.com/attardi/wikiextractor) has lines that begin with ``<doc id="`` and lines
``</doc>``, and ``&``, ``<`` and ``>`` between them escaped. The title is repeated in the first line, removed if
requested. An article that has only its title is an empty document, the same as when a dump is read.
"""

import html
import re
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import BinaryIO, Final, TypeAlias

from hornbook.errors import DataError, HornbookError
from hornbook.storage.decompress import InputMeter
from hornbook.storage.system import format_bytes
from hornbook.text.processes import worker_pool
from hornbook.text.reading import (
    STANDARD_INPUT,
    CleanOptions,
    Document,
    Outcome,
    Reader,
    ReadOptions,
    Skipped,
    Source,
    StreamReader,
    after,
)
from hornbook.wikipedia.blocks import read_blocks
from hornbook.wikipedia.clean import ItemCount, LinkNames, clean_page
from hornbook.wikipedia.dump import MAX_PAGE_BYTES, Page, Site, read_pages

_BATCH_CHARACTERS: Final = 1 << 20
_NOTICE_CHARACTERS: Final = 100
_BATCHES_HERE: Final = 8
_BATCHES_AHEAD: Final = 2

Text: TypeAlias = tuple[str, int]
"""The text of a page, possibly empty, and the offset of the page in the uncompressed dump."""

Item: TypeAlias = Page | DataError | Skipped
"""An article; the error of an unreadable page; or a note on a page that is not an article."""
_OPENING: Final = re.compile(r'<doc id="[^"]*"[^>]* title="(.*)"[^"]*>')
_CLOSING: Final = b"</doc>"


def read_dump(
    source: str, options: CleanOptions, *, name: str, processes: int, start: int = 0, meter: InputMeter | None = None
) -> Iterator[Text | DataError | Skipped]:
    """Read the articles of a dump, in order.

    Yields an error for a page that is too long, and a note for a page that is not an article: ``"redirects"``,
    ``"pages of other namespaces"``, ``"pages that are not wikitext"``. A note ``"empty list items"`` comes before each
    article with lists.

    Args:
        source: path of the dump, or ``"-"`` for standard input.
        options: the parts of an article to keep.
        name: the name of the dump in errors.
        processes: number of processes that clean; 1 uses only this process.
        start: number of the first article or error to yield; earlier articles are not cleaned.
        meter: counts the bytes read.

    Raises:
        UserError: the file is not accessible.
        DataError: it is not a dump, or damaged; pages before the damage are yielded first.
        HornbookError: a worker process was killed.
    """
    site = Site()
    failures: list[DataError] = []
    pages = read_pages(read_blocks(source, processes, meter), name, site)

    def classified() -> Iterator[Item]:
        try:
            for page in pages:
                if isinstance(page, DataError) or page.is_article:
                    yield page
                elif page.redirect:
                    yield Skipped("redirects")
                else:
                    yield Skipped("pages of other namespaces" if page.namespace else "pages that are not wikitext")
        except DataError as error:
            failures.append(error)

    items = after(classified(), start)
    batches = _batches(items)
    for batch in islice(batches, _BATCHES_HERE) if processes > 1 else batches:
        yield from _merged(batch, _clean(_articles(batch), options, LinkNames.of_site(site.namespaces)))
    if (more := next(batches, None)) is not None:
        names = LinkNames.of_site(site.namespaces)
        yield from _clean_elsewhere(chain((more,), batches), options, names, processes)
    if failures:
        raise failures[0]


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += len(item.text) if isinstance(item, Page) else _NOTICE_CHARACTERS
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _articles(batch: list[Item]) -> list[tuple[str, str]]:
    """Return (title, wikitext) of each article."""
    return [(item.title, item.text) for item in batch if isinstance(item, Page)]


def _clean(pages: list[tuple[str, str]], options: CleanOptions, names: LinkNames) -> list[tuple[str, ItemCount]]:
    """Return the prose of each page, and the count of its list items."""
    counts = [ItemCount() for _ in pages]
    return [(clean_page(*page, options, names, count), count) for page, count in zip(pages, counts, strict=True)]


def _merged(batch: list[Item], texts: list[tuple[str, ItemCount]]) -> Iterator[Text | DataError | Skipped]:
    """Yield the items of a batch with each page replaced by its cleaned text, after a note on its list items."""
    cleaned = iter(texts)
    for item in batch:
        if not isinstance(item, Page):
            yield item
            continue
        text, items = next(cleaned)
        if items.total:
            yield Skipped("empty list items", items.empty, items.total)
        yield text, item.offset


def _clean_elsewhere(
    batches: Iterator[list[Item]], options: CleanOptions, names: LinkNames, processes: int
) -> Iterator[Text | DataError | Skipped]:
    waiting: deque[tuple[list[Item], Future[list[tuple[str, ItemCount]]]]] = deque()
    try:
        with worker_pool(processes) as executor:
            while True:
                room = processes + _BATCHES_AHEAD - len(waiting)
                for batch in islice(batches, room):
                    waiting.append((batch, executor.submit(_clean, _articles(batch), options, names)))
                if not waiting:
                    return
                batch, texts = waiting.popleft()
                yield from _merged(batch, texts.result())
    except BrokenProcessPool as error:
        raise HornbookError(
            "a process that cleans wikitext was killed, probably since memory ran out; use fewer with `threads`; in "
            'your own script, call hornbook below `if __name__ == "__main__":`'
        ) from error


def read_wikipedia(source: Source, options: ReadOptions, start: int) -> Iterator[Outcome]:
    """Read the articles of a dump from article ``start`` on; earlier ones are not cleaned."""
    path = str(source.path or STANDARD_INPUT)
    articles = read_dump(
        path, options.cleaning, name=str(source), processes=options.processes, start=start, meter=source.meter
    )
    for article in articles:
        yield article if isinstance(article, Skipped) else _document(article, source)


def read_wikiextractor(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read the documents of a file written by WikiExtractor."""
    for text in read_extracted(stream, str(source), titles=options.cleaning.titles == "keep"):
        yield _document(text, source)


def _document(text: tuple[str, int] | DataError, source: Source) -> Document | DataError:
    if isinstance(text, DataError):
        return text
    content, offset = text
    return Document(content, source.name, offset, len(content.encode()))


STREAM_READERS: Final[dict[str, StreamReader]] = {"wikiextractor": read_wikiextractor}
READERS: Final[dict[str, Reader]] = {"wikipedia": read_wikipedia}
"""By format, for `hornbook.text.documents`; the latter open the files themselves."""


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
