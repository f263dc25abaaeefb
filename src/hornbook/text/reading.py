r"""What a reader hands out, its options, how far the reading came, and what readers of text share.

    reader(Source("dump.xml"), options, start)  ->  Document, Document, DataError, Document, Skipped("redirects") ...
    read_lines(stream, limit)                   ->  Line(1, 0, b"one\r\n"), Line(2, 5, b"two")

A reader hands out, in the order of its source: documents, errors for documents that cannot be read, and notes on what
is no document. `hornbook.text.documents` alone decides whether an error stops everything, and what is counted. An error
that a reader raises ends its source. A line that is too long becomes one without content, and memory never holds it.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from io import BufferedReader
from pathlib import Path, PurePath
from typing import BinaryIO, Final, Literal, NamedTuple, TypeAlias, TypeVar

from hornbook.errors import DataError
from hornbook.storage import open_text_source
from hornbook.storage.decompress import COMPRESSED_SUFFIXES, InputMeter
from hornbook.storage.system import format_bytes
from hornbook.text.wikipedia.lines import CleanOptions

Format = Literal[
    "auto", "text", "lines", "blank-lines", "wikitext", "jsonl",
    "csv", "tsv", "parquet", "arrow", "wikipedia", "wikiextractor",
]  # fmt: skip
T = TypeVar("T")
DEFAULT_FIELD: Final = "text"
STANDARD_INPUT: Final = "-"
HUB_SCHEME: Final = "hf:"
"""What an input begins with that is a data set of the Hugging Face hub, or a file of one."""
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_MESSAGES_KEPT: Final = 10
_SKIPPED_BLOCK: Final = 1 << 20
_MANY_BLANK: Final = 64
"""Blank lines in a row, from which on it pays to copy a buffer."""


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
        suffixes, exclude: which files to take out of folders, see `hornbook.text.documents.find_sources`.
        split, config: which part of a data set, where there are several.
        on_error: ``"stop"`` at a document that cannot be read, or ``"skip"`` and count it.
        max_document_bytes: of a document of plain text or of a row.
        max_line_bytes: of a line.
        cleaning: what to keep of an article; of WikiExtractor's, only the title can be dropped.
        keep_crlf: keep carriage returns; otherwise a CRLF, or a CR alone, in a text becomes LF.
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
    keep_crlf: bool = False
    processes: int = 1


@dataclass(frozen=True)
class Source:
    """Something to read documents from.

    Attributes:
        name: what documents call it.
        path: the file on this machine; None for standard input.
        meter: counts the bytes that are read from it; None counts nothing.
    """

    name: str
    path: Path | None
    meter: InputMeter | None = None

    def __str__(self) -> str:
        """What messages call it."""
        return self.name if self.path else "standard input"


Reader: TypeAlias = Callable[[Source, ReadOptions, int], Iterator[Outcome]]
"""Reads a source from its n-th document on, counting errors; what comes before is neither handed out nor noted."""

StreamReader: TypeAlias = Callable[[BinaryIO, Source, ReadOptions], Iterator[Outcome]]
"""Reads an opened source from its beginning."""


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
        line_ends: CRLFs and CRs that became LF in the documents handed out.
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
    line_ends: int = 0
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


def with_plain_line_ends(document: Document) -> tuple[Document, int]:
    """Return a document in which CRLF, and CR alone, became LF, and how many did."""
    if not (num_returns := document.text.count("\r")):
        return document, 0
    text = document.text.replace("\r\n", "\n")
    num_bytes = document.num_bytes - (len(document.text) - len(text))
    return replace(document, text=text.replace("\r", "\n"), num_bytes=num_bytes), num_returns


def after(outcomes: Iterator[T], start: int) -> Iterator[T]:
    """Drop the first ``start`` documents, errors in place of documents included, with what lies between them."""
    for outcome in outcomes:
        if start == 0:
            yield outcome
        elif not isinstance(outcome, Skipped):
            start -= 1


def content_suffix(path: str) -> str:
    """Return the ending that tells the format, in lower case: ``.json`` for ``c4.JSON.gz``."""
    pure = PurePath(path.lower())
    return (pure.with_suffix("") if pure.suffix in COMPRESSED_SUFFIXES else pure).suffix


def is_excluded(path: str | PurePath, patterns: Sequence[str]) -> bool:
    """Tell whether the name of a file, or of a folder that it is in, fits one of the patterns."""
    return any(fnmatchcase(part, pattern) for part in PurePath(path).parts for pattern in patterns)


def has_suffix(path: str, suffixes: Sequence[str]) -> bool:
    """Tell whether a file has one of some endings, perhaps before a compression's; any will do if there are none."""
    lower = path.lower()
    names = [lower, *(lower.removesuffix(ending) for ending in COMPRESSED_SUFFIXES if lower.endswith(ending))]
    return not suffixes or any(name.endswith(suffix.lower()) for name in names for suffix in suffixes)


def open_stream(source: Source) -> BinaryIO:
    """Open a source for bounded reading, see `hornbook.storage.open_text_source`."""
    return open_text_source(source.path or sys.stdin.buffer, name=str(source), meter=source.meter)


def read_lines(stream: BinaryIO, limit: int) -> Iterator[Line]:
    """Yield the lines of a file, as they end with a newline, of at most ``limit`` bytes each.

    Behind 64 blank lines in a row, all that a buffer holds come as one ``Line``: a file may have billions of them.
    """
    number, offset, num_blank = 1, 0, 0
    while content := stream.readline(limit + 1):
        size = len(content)
        mark = len(BYTE_ORDER_MARK) if number == 1 and content.startswith(BYTE_ORDER_MARK) else 0
        if size > limit:
            block = content
            while not block.endswith(b"\n") and (block := stream.readline(_SKIPPED_BLOCK)):
                size += len(block)
            yield Line(number, offset, None)
        elif content := content[mark:]:
            yield Line(number, offset + mark, content)
        number, offset = number + 1, offset + size
        num_blank = num_blank + 1 if content.isspace() else 0
        if num_blank >= _MANY_BLANK and (blank := _buffered_blank_lines(stream)):
            yield Line(number, offset, blank)
            number, offset = number + blank.count(b"\n"), offset + len(blank)


def line_too_long(place: str, limit: int, remedy: str = "split the document") -> DataError:
    """Return the error for a line without content."""
    return DataError(f"{place}: longer than {format_bytes(limit)}; {remedy}")


def plain_document(data: bytes, source: Source, place: str, offset: int) -> Document:
    """Return the document that plain bytes at an offset of the source are; raises as ``plain_text``."""
    return Document(plain_text(data, place, offset), source.name, offset, len(data))


def plain_text(data: bytes, place: str, offset: int) -> str:
    """Decode bytes at an offset. Raises DataError, which begins with ``place``, for a zero byte or other than UTF-8."""
    if (found := data.find(b"\0")) >= 0:
        raise DataError(
            f"{place}: a zero byte at offset {offset + found}, so it is binary or UTF-16, not UTF-8; convert it, or "
            "leave it out (--suffix, --exclude, --on-error skip)"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(error, place, offset) from error


def not_utf8(error: UnicodeDecodeError, place: str, offset: int = 0) -> DataError:
    """Return the error for bytes that are no UTF-8; the message begins with ``place`` and counts from ``offset``."""
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
