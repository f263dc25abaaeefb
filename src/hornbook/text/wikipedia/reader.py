"""A dump's articles as prose: XML is read here, wikitext is cleaned in as many processes as there are cores.

    blocks -> pages -> articles -> batches of 1 MB -> clean, clean, clean -> (text, offset), in the dump's order

Up to 8 MB are cleaned right here, for a process takes longer to start. Batches are handed out a few ahead and taken
back in their order, so the outcome does not depend on the number of processes and memory holds some batches. Processes
are spawned, never forked, on every system alike; they leave Ctrl-C to this one and end when it does. The price: each
page's text goes through a pipe twice, which costs a hundredth of cleaning it.
"""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, TypeAlias

from hornbook.errors import DataError, HornbookError
from hornbook.text.wikipedia.blocks import read_blocks
from hornbook.text.wikipedia.clean import clean_page
from hornbook.text.wikipedia.dump import Page, Site, read_pages
from hornbook.text.wikipedia.lines import CleanOptions
from hornbook.text.wikipedia.links import LinkNames

_BATCH_CHARACTERS: Final = 1 << 20
_BATCHES_HERE: Final = 8
_BATCHES_AHEAD: Final = 2

Text: TypeAlias = tuple[str, int]
"""A page's document, which may be empty, and the offset of the page in the uncompressed dump."""


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Some articles (title, wikitext, offset), and how to clean them."""

    pages: list[tuple[str, str, int]]
    options: CleanOptions
    names: LinkNames


def read_dump(
    source: str,
    options: CleanOptions,
    *,
    processes: int,
    skipped: Counter[str],
    on_fault: Callable[[DataError], None],
) -> Iterator[Text]:
    """Read the articles of a dump, in its order.

    Args:
        source: path of the dump, or ``"-"`` for standard input.
        options: what to keep of an article.
        processes: to clean with; 1 for this one alone.
        skipped: counts what is no article: ``"redirects"``, ``"pages of other namespaces"``, ``"pages that are not
            wikitext"``.
        on_fault: is told of a page that is too long; it may raise, or else the page is left out.

    Raises:
        UserError: there is no such file, or it may not be read.
        DataError: it is no dump, or a damaged one; what comes before the damage is handed out first.
        StorageError: the disk failed.
        HornbookError: a process was killed.
    """
    name = "standard input" if source == "-" else source
    site = Site()
    failures: list[DataError] = []
    pages = read_pages(read_blocks(source, processes), name, site, on_fault)
    batches = _batches(_articles(_until_failure(pages, failures), skipped), options, site)
    for batch in islice(batches, _BATCHES_HERE) if processes > 1 else batches:
        yield from _clean(batch)
    if (more := next(batches, None)) is not None:
        yield from _clean_elsewhere(chain((more,), batches), processes)
    if failures:
        raise failures[0]


def _until_failure(pages: Iterator[Page], failures: list[DataError]) -> Iterator[Page]:
    try:
        yield from pages
    except DataError as error:
        failures.append(error)


def _articles(pages: Iterable[Page], skipped: Counter[str]) -> Iterator[Page]:
    for page in pages:
        if page.redirect:
            skipped["redirects"] += 1
        elif page.namespace != 0:
            skipped["pages of other namespaces"] += 1
        elif not page.prose:
            skipped["pages that are not wikitext"] += 1
        else:
            yield page


def _batches(pages: Iterable[Page], options: CleanOptions, site: Site) -> Iterator[_Batch]:
    batch: list[tuple[str, str, int]] = []
    size = 0
    for page in pages:
        batch.append((page.title, page.text, page.offset))
        size += len(page.text)
        if size >= _BATCH_CHARACTERS:
            yield _Batch(pages=batch, options=options, names=LinkNames.of_site(site.file_names, site.category_names))
            batch, size = [], 0
    if batch:
        yield _Batch(pages=batch, options=options, names=LinkNames.of_site(site.file_names, site.category_names))


def _clean(batch: _Batch) -> list[Text]:
    return [(clean_page(title, text, batch.options, batch.names), offset) for title, text, offset in batch.pages]


def _clean_elsewhere(batches: Iterator[_Batch], processes: int) -> Iterator[Text]:
    executor = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _start_process)
    waiting: deque[Future[list[Text]]] = deque()
    try:
        while True:
            room = processes + _BATCHES_AHEAD - len(waiting)
            waiting.extend(executor.submit(_clean, batch) for batch in islice(batches, room))
            if not waiting:
                return
            yield from waiting.popleft().result()
    except BrokenProcessPool as error:
        raise HornbookError(
            "a process that cleans wikitext was killed, as the system does when memory runs out; try again with fewer "
            "(--threads)"
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
