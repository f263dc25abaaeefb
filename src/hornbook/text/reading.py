"""What a reader hands out, how it is told to read, and how far the reading came.

    reader(Source("dump.xml"), options, start)  ->  Document, Document, DataError, Document, Skipped("redirects") ...

A reader hands out, in the order of its source, whatever it meets: documents, errors in place of documents that cannot
be read, and notes on what is no document. Whether an error stops everything, and what is counted, is decided in one
place, `hornbook.text.documents`; so the count of what came before a document does not depend on how far a reader reads
ahead. An error that a reader raises ends its source.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

from hornbook.errors import DataError
from hornbook.text.wikipedia.lines import CleanOptions

Format = Literal[
    "auto",
    "text",
    "lines",
    "blank-lines",
    "wikitext",
    "jsonl",
    "csv",
    "tsv",
    "parquet",
    "arrow",
    "wikipedia",
    "wikiextractor",
]
T = TypeVar("T")
DEFAULT_FIELD: Final = "text"
_MESSAGES_KEPT: Final = 10


@dataclass(frozen=True, slots=True)
class Document:
    """A text and where it is from.

    Attributes:
        text: the whole document.
        source: the file as the user named it or as it was found in a folder, ``"-"`` for standard input,
            ``"hf:owner/name@commit/file"`` for a file of the Hugging Face hub.
        offset: bytes before the text in the uncompressed file; for JSONL, before its line; for CSV and TSV, before its
            row; for Wikipedia, before its page; for Parquet and Arrow, rows before its row.
        num_bytes: length of the text in UTF-8.
    """

    text: str
    source: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that is no document.

    Attributes:
        kind: says what, in the plural (`hornbook.wording` has the singular).
        count: how many of them.
        total: among how many that could have been, where that is known.
    """

    kind: str
    count: int = 1
    total: int = 0


Outcome: TypeAlias = Document | DataError | Skipped


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read documents.

    Attributes:
        format: ``"text"``, one document a file; ``"lines"``, one a line; ``"blank-lines"``, one from a blank line to
            the next; ``"wikitext"``, WikiText's articles; ``"jsonl"``, one a line; ``"csv"``, ``"tsv"``, ``"parquet"``
            and ``"arrow"``, one a row; ``"wikipedia"``, the articles of MediaWiki's XML dumps; ``"wikiextractor"``, the
            ``<doc>`` blocks that WikiExtractor writes; ``"auto"``, by the ending, also before a compression's: JSONL
            for ``.jsonl``, ``.ndjson`` and ``.json``, the format of that name for ``.csv``, ``.tsv``, ``.parquet`` and
            ``.arrow``, and text for all others.
        field: where a line of JSONL or a row has its text; ``"meta.text"`` is the field ``text`` of the field ``meta``,
            where no field is called just so.
        suffixes, exclude: which files to take out of folders, see `hornbook.text.input_files.find_sources`.
        split, config: which part of a data set, where there are several.
        on_error: ``"stop"`` at a document that cannot be read, or ``"skip"`` and count it.
        max_document_bytes: of a document of plain text or of a row.
        max_line_bytes: of a line.
        cleaning: what to keep of an article; of WikiExtractor's, only the title can be dropped.
        processes: to read with, where that helps; the documents and their order do not depend on it.
    """

    format: Format = "auto"
    field: str = DEFAULT_FIELD
    suffixes: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    split: str | None = None
    config: str | None = None
    on_error: Literal["stop", "skip"] = "stop"
    max_document_bytes: int = 128 << 20
    max_line_bytes: int = 64 << 20
    cleaning: CleanOptions = CleanOptions()
    processes: int = 1


@dataclass(frozen=True)
class Source:
    """Something to read documents from.

    Attributes:
        name: what documents call it.
        path: where it lies on this machine; None for standard input.
    """

    name: str
    path: Path | None

    def __str__(self) -> str:
        """What messages call it."""
        return self.name if self.path else "standard input"


Reader: TypeAlias = Callable[[Source, ReadOptions, int], Iterator[Outcome]]
"""Reads a source from its n-th document on, errors in place of documents included in n; what comes before is neither
handed out nor noted."""


@dataclass(frozen=True)
class Position:
    """How far a list of sources was read, to go on from there.

    Attributes:
        source: number of the source in the list; those before it are done with.
        documents: of that source, that were read, whether they were handed out, empty or unreadable.
    """

    source: int = 0
    documents: int = 0


@dataclass(kw_only=True)
class Tally:
    """What was read so far; the reading keeps it up to date.

    Attributes:
        documents, num_bytes: documents handed out, and their bytes.
        empty: documents without a character, left out.
        faults: documents left out because they could not be read; a damaged compressed file counts once.
        messages: what was wrong with the first ten of them.
        faulty: numbers of the sources with such documents.
        skipped: what is no document, counted by kind, as in ``{"redirects": 100}``.
        totals: among how many, where that is known, by kind.
        position: after the document that was handed out last.
    """

    documents: int = 0
    num_bytes: int = 0
    empty: int = 0
    faults: int = 0
    messages: list[str] = field(default_factory=list)
    faulty: set[int] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    position: Position = Position()

    def add_skipped(self, skipped: Skipped) -> None:
        """Count what is no document."""
        for counter, number in ((self.skipped, skipped.count), (self.totals, skipped.total)):
            if number:
                counter[skipped.kind] += number

    def add_fault(self, source: int, error: DataError) -> None:
        """Count a document of a source that could not be read."""
        self.faults += 1
        self.faulty.add(source)
        if len(self.messages) < _MESSAGES_KEPT:
            self.messages.append(str(error))


def after(outcomes: Iterator[T], start: int) -> Iterator[T]:
    """Drop the first ``start`` documents, errors in place of documents included, with what lies between them."""
    for outcome in outcomes:
        if start == 0:
            yield outcome
        elif not isinstance(outcome, Skipped):
            start -= 1
