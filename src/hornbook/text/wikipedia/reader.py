"""A dump's articles as prose: XML is read here, wikitext is cleaned in as many processes as there are cores.

    blocks -> pages -> articles -> batches of 1 MB -> clean, clean, clean -> (text, offset), in the dump's order

Up to 8 MB are cleaned right here, for a process takes longer to start. Batches are handed out a few ahead and taken
back in their order, so the outcome does not depend on the number of processes and memory holds some batches. Processes
are spawned, never forked, on every system alike; they leave Ctrl-C to this one and end when it does.
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
from hornbook.text.reading import Skipped, after
from hornbook.text.wikipedia.blocks import read_blocks
from hornbook.text.wikipedia.clean import clean_page
from hornbook.text.wikipedia.dump import Page, Site, read_pages
from hornbook.text.wikipedia.lines import CleanOptions, ItemCount
from hornbook.text.wikipedia.links import LinkNames

_BATCH_CHARACTERS: Final = 1 << 20
_NOTICE_CHARACTERS: Final = 100
_BATCHES_HERE: Final = 8
_BATCHES_AHEAD: Final = 2

Text: TypeAlias = tuple[str, int]
"""A page's document, which may be empty, and the offset of the page in the uncompressed dump."""

Item: TypeAlias = Page | DataError | Skipped
"""An article; an error in place of a page; or a note on a page that is no article."""


def read_dump(
    source: str, options: CleanOptions, *, name: str, processes: int, start: int = 0, meter: InputMeter | None = None
) -> Iterator[Text | DataError | Skipped]:
    """Read the articles of a dump, in its order.

    In place of a page that is too long, an error is handed out; of one that is no article, a note:
    ``"redirects"``, ``"pages of other namespaces"``, ``"pages that are not wikitext"``. A note ``"empty list items"``
    comes before an article that has lists.

    Args:
        source: path of the dump, or ``"-"`` for standard input.
        options: what to keep of an article.
        name: of the dump, for errors.
        processes: to clean with; 1 for this one alone.
        start: number of the article, or error, to begin with; what comes before it is not cleaned.
        meter: counts the bytes that are read.

    Raises:
        UserError: the file cannot be read.
        DataError: it is no dump, or a damaged one; what comes before the damage is handed out first.
        HornbookError: a process was killed.
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
    """Return title and wikitext of the articles."""
    return [(item.title, item.text) for item in batch if isinstance(item, Page)]


def _clean(pages: list[tuple[str, str]], options: CleanOptions, names: LinkNames) -> list[tuple[str, ItemCount]]:
    """Return the document of each page, and its list items."""
    counts = [ItemCount() for _ in pages]
    return [(clean_page(*page, options, names, count), count) for page, count in zip(pages, counts, strict=True)]


def _merged(batch: list[Item], texts: list[tuple[str, ItemCount]]) -> Iterator[Text | DataError | Skipped]:
    """Put the cleaned articles back among what else was met; a note on its list items comes before an article."""
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
            "a process that cleans wikitext was killed, as the system does when memory runs out; try again with fewer "
            '(--threads), or, in a script of your own, start hornbook below `if __name__ == "__main__":`'
        ) from error
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _start_process() -> None:
    """Leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a spawned process is started so"

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
