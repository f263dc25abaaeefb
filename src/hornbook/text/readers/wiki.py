"""Encyclopedias: the articles of MediaWiki's dumps and the ``<doc>`` blocks of WikiExtractor, as documents.

(text, offset of its page) of `hornbook.text.wikipedia`  ->  Document; errors and notes go through as they are
"""

from collections.abc import Iterator
from typing import BinaryIO

from hornbook.errors import DataError
from hornbook.text.reading import STANDARD_INPUT, Document, Outcome, ReadOptions, Skipped, Source
from hornbook.text.wikipedia.extracted import read_extracted
from hornbook.text.wikipedia.reader import read_dump


def read_wikipedia(source: Source, options: ReadOptions, start: int) -> Iterator[Outcome]:
    """Read the articles of a dump; those before ``start`` are not cleaned."""
    path = str(source.path or STANDARD_INPUT)
    articles = read_dump(
        path, options.cleaning, name=str(source), processes=options.processes, start=start, meter=source.meter
    )
    for article in articles:
        yield article if isinstance(article, Skipped) else _document(article, source)


def read_wikiextractor(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read the documents of one of WikiExtractor's files."""
    for text in read_extracted(stream, str(source), titles=options.cleaning.titles == "keep"):
        yield _document(text, source)


def _document(text: tuple[str, int] | DataError, source: Source) -> Document | DataError:
    if isinstance(text, DataError):
        return text
    content, offset = text
    return Document(content, source.name, offset, len(content.encode()))
