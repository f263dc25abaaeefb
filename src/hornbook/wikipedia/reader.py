"""Reading the articles of a dump: this process parses XML, worker processes clean wikitext.

    blocks -> pages -> articles -> batches of 1 MB -> clean, clean, clean -> (text, offset), in the order of the dump

The first 8 MB are cleaned in this process, since starting workers takes longer. A few batches are submitted ahead and
collected in order, so the result does not depend on the number of processes, and memory holds only these batches.
Workers are spawned, not forked, on every system; they ignore Ctrl-C and exit with this process.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Final, TypeAlias

from hornbook.errors import DataError, HornbookError
from hornbook.storage.decompress import InputMeter
from hornbook.text.reading import CleanOptions, Skipped, after
from hornbook.wikipedia.blocks import read_blocks
from hornbook.wikipedia.clean import clean_page
from hornbook.wikipedia.dump import Page, Site, read_pages
from hornbook.wikipedia.lines import ItemCount
from hornbook.wikipedia.links import LinkNames

_BATCH_CHARACTERS: Final = 1 << 20
_NOTICE_CHARACTERS: Final = 100
_BATCHES_HERE: Final = 8
_BATCHES_AHEAD: Final = 2

Text: TypeAlias = tuple[str, int]
"""The text of a page, possibly empty, and the offset of the page in the uncompressed dump."""

Item: TypeAlias = Page | DataError | Skipped
"""An article; the error of an unreadable page; or a note on a page that is not an article."""


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
    executor = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _start_process)
    waiting: deque[tuple[list[Item], Future[list[tuple[str, ItemCount]]]]] = deque()
    try:
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
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _start_process() -> None:
    """Ignore Ctrl-C, which the parent handles, and exit when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a spawned process"

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
