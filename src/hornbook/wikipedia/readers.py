"""Wikipedia: the articles of MediaWiki's dumps and WikiExtractor's ``<doc>`` blocks as documents.

(text, offset of the page) from `hornbook.wikipedia`  ->  Document; errors and notes are passed on unchanged
"""

from collections.abc import Iterator
from typing import BinaryIO, Final

from hornbook.errors import DataError
from hornbook.text.reading import (
    STANDARD_INPUT,
    Document,
    Outcome,
    Reader,
    ReadOptions,
    Skipped,
    Source,
    StreamReader,
)
from hornbook.wikipedia.extracted import read_extracted
from hornbook.wikipedia.reader import read_dump


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
