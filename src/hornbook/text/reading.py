r"""Types and helpers shared by the readers: documents, options, positions, counts, and bounded reading of lines.

    reader(Source("dump.xml"), options, start)  ->  Document, Document, DataError, Document, Skipped("redirects") ...
    read_lines(stream, limit)                   ->  Line(1, 0, b"one\r\n"), Line(2, 5, b"two")

A reader yields, in the order of its source, documents, errors for unreadable documents, and notes on skipped content.
Only `hornbook.text.documents` decides whether an error stops the reading, and counts. An error that a reader raises
ends the source. A line that is too long is yielded without its content, which memory never holds.
"""

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple, TypeAlias, TypeVar

from hornbook.config.options import option
from hornbook.errors import DataError
from hornbook.storage import Limits, open_text_source
from hornbook.storage.decompress import InputMeter, open_span
from hornbook.storage.system import format_bytes

Format = Literal[
    "auto", "text", "lines", "blank-lines", "wikitext", "jsonl",
    "csv", "tsv", "parquet", "arrow", "warc", "wikipedia", "wikiextractor",
]  # fmt: skip
T = TypeVar("T")
DEFAULT_FIELD: Final = "text"
STANDARD_INPUT: Final = "-"
HUB_SCHEME: Final = "hf:"
"""The prefix of an input that is a data set of the Hugging Face hub or a file of one."""
CONVERT: Final = "convert it, from Latin-1 for example by `iconv -f latin1 -t utf-8`"
"""The advice for a file that is not UTF-8."""
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_MESSAGES_KEPT: Final = 10
_SKIPPED_BLOCK: Final = 1 << 20
_MANY_BLANK: Final = 64
"""Consecutive blank lines after which copying the buffer is faster than reading line by line."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its origin.

    Attributes:
        text: the whole document.
        source: the path of the file as named by the user or found in a folder, ``"-"`` for standard input, or
            ``"hf:owner/name@commit/file"`` for a file of the Hugging Face hub.
        offset: bytes in the uncompressed file before the text, or before the line (JSONL), row (CSV, TSV), page
            (Wikipedia) or record (WARC) that has it; for Parquet and Arrow, the number of rows before it.
        num_bytes: length of the text in UTF-8.
        languages: those that a record of a web archive states: ISO 639-3, most frequent first, as in ``"rus,eng"``;
            None if unknown.
    """

    text: str
    source: str
    offset: int
    num_bytes: int
    languages: str | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A note on content that is not a document.

    Attributes:
        kind: the kind of content, in the plural (`hornbook.wording` has the singular).
        count: how many were skipped.
        total: how many there were, skipped or not, if known, else 0.
    """

    kind: str
    count: int = 1
    total: int = 0


Outcome: TypeAlias = Document | DataError | Skipped


@dataclass(frozen=True, kw_only=True)
class CleanOptions:
    """The parts of an article to keep besides its paragraphs.

    Attributes:
        headings: headings of nonempty sections.
        lists: lines that begin with ``*``, ``#`` or ``;``.
        titles: the title of the page, as the first line.
    """

    headings: Literal["keep", "drop"] = "keep"
    lists: Literal["keep", "drop"] = "keep"
    titles: Literal["keep", "drop"] = "keep"


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read documents."""

    format: Format = "auto"
    """``"text"``, one document per file; ``"lines"``, one per line; ``"blank-lines"``, one between blank lines;
    ``"wikitext"``, WikiText's articles; ``"jsonl"``, one per line; ``"csv"``, ``"tsv"``, ``"parquet"`` and ``"arrow"``,
    one per row; ``"warc"``, the pages of web archives; ``"wikipedia"``, the articles of MediaWiki's XML dumps;
    ``"wikiextractor"``, the ``<doc>`` blocks of WikiExtractor; ``"auto"``, by the suffix (a compression's suffix is
    ignored): JSONL for ``.jsonl``, ``.ndjson`` and ``.json``, WARC for ``.warc``, ``.wet`` and ``.wat``, the format of
    that name for ``.csv``, ``.tsv``, ``.parquet`` and ``.arrow``, and text for all others."""
    field: str = option(DEFAULT_FIELD, help="JSONL field or table column with the text; a.b for a nested field")
    """``"meta.text"`` is the field ``text`` of the field ``meta`` unless a field is named ``meta.text``."""
    split: str | None = option(None, help="split of a data set, such as train, if it has several")
    config: str | None = option(None, help="configuration of a hub data set, such as en, if several")
    suffixes: tuple[str, ...] = option((), help="read only files of folders with this extension; repeatable")
    exclude: tuple[str, ...] = option((), help="skip files and folders whose name matches, as in 'test*'; repeatable")
    """See `hornbook.text.documents.find_sources`."""
    on_error: Literal["stop", "skip"] = option(
        "stop", help="how to handle an unreadable document: stop, or skip and count it"
    )
    keep_crlf: bool = option(False, help="keep carriage returns (default: replace CRLF and CR by LF)")
    max_document_bytes: int = 128 << 20
    """The limit for a document of plain text or of a row."""
    max_line_bytes: int = 64 << 20
    cleaning: CleanOptions = dataclasses.field(default_factory=CleanOptions)
    """Which parts of an article to keep; for WikiExtractor's, only the title can be dropped."""
    processes: int = 1
    """For readers that support it; documents and their order do not depend on it."""


class Span(NamedTuple):
    """A range of bytes of an uncompressed file that begins and ends at the start of a line, or the file's end."""

    start: int
    end: int


class Slice(NamedTuple):
    """A part of a list of sources, for one process.

    Attributes:
        first, last: the sources from ``first`` to ``last - 1``.
        span: the part of the source to read, if there is only one; None for all of it.
    """

    first: int
    last: int
    span: Span | None = None


@dataclass(frozen=True)
class Source:
    """A file or standard input, from which documents are read.

    Attributes:
        name: the name in ``Document.source``.
        path: the local file; None for standard input.
        meter: counts the bytes read, unless None.
        span: the part of the file to read; None for all of it.
    """

    name: str
    path: Path | None
    meter: InputMeter | None = None
    span: Span | None = None

    def __str__(self) -> str:
        """Return the name in messages."""
        return self.name if self.path else "standard input"


@dataclass(frozen=True, slots=True)
class LineOf:
    """The place of a line for messages, as in ``"a.jsonl, line 12"``; its number is found when it is printed.

    Attributes:
        source: the source.
        number: the line number, from 1, in the part of the source that is read.
    """

    source: Source
    number: int

    def __str__(self) -> str:
        """Return file and line number; of a span, this counts the lines before it."""
        before, span = 0, self.source.span
        if span is not None and self.source.path is not None:
            with self.source.path.open("rb") as file:
                remaining = span.start
                while block := file.read(min(_SKIPPED_BLOCK, remaining)):
                    before, remaining = before + block.count(b"\n"), remaining - len(block)
        return f"{self.source}, line {before + self.number}"


Reader: TypeAlias = Callable[[Source, ReadOptions, int], Iterator[Outcome]]
"""Reads a source from its n-th document on, where n also counts errors; nothing before it is yielded."""

StreamReader: TypeAlias = Callable[[BinaryIO, Source, ReadOptions], Iterator[Outcome]]
"""Reads an open source from its beginning."""


class Line(NamedTuple):
    """A line of a file, or several blank lines.

    Attributes:
        number: the line number in the stream, from 1; for several lines, that of the first.
        offset: the byte offset in the file, after a byte-order mark.
        content: the bytes with the line end; None if the line exceeds the limit.
    """

    number: int
    offset: int
    content: bytes | None


@dataclass(frozen=True)
class Position:
    """A position in a list of sources, from which reading can resume.

    Attributes:
        source: index of the source; those before it are finished.
        documents: number of documents read from that source, including empty and unreadable ones.
    """

    source: int = 0
    documents: int = 0


@dataclass(kw_only=True)
class Tally:
    """Counts of what was read so far, updated during reading.

    Attributes:
        documents, num_bytes: number of documents yielded, and their bytes.
        empty: number of documents dropped because they have no character.
        faults: number of unreadable documents skipped; a damaged compressed file counts once.
        messages: the errors of the first ten unreadable documents.
        faulty: indices of the sources with unreadable documents.
        skipped: content that is not a document, counted by kind, as in ``{"redirects": 100}``.
        totals: the totals by kind, where known, see ``Skipped.total``.
        line_ends: number of CRLFs and CRs that became LF in the documents yielded.
        position: the position after the last document yielded.
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

    def take(self) -> "Tally":
        """Return the counts since the last call, with the position, and start again from zero."""
        taken = replace(self)
        vars(self).update(vars(Tally(position=self.position)))
        return taken

    def __add__(self, later: "Tally") -> "Tally":
        """Return the counts of this and of what was read after it."""
        return Tally(
            documents=self.documents + later.documents,
            num_bytes=self.num_bytes + later.num_bytes,
            empty=self.empty + later.empty,
            faults=self.faults + later.faults,
            messages=(self.messages + later.messages)[:_MESSAGES_KEPT],
            faulty=self.faulty | later.faulty,
            skipped=self.skipped + later.skipped,
            totals=self.totals + later.totals,
            line_ends=self.line_ends + later.line_ends,
            position=later.position,
        )

    def add_skipped(self, skipped: Skipped) -> None:
        """Count content that is not a document."""
        for counter, number in ((self.skipped, skipped.count), (self.totals, skipped.total)):
            if number:
                counter[skipped.kind] += number

    def add_fault(self, source: int, error: DataError) -> None:
        """Count an unreadable document of a source."""
        self.faults += 1
        self.faulty.add(source)
        if len(self.messages) < _MESSAGES_KEPT:
            self.messages.append(str(error))


def with_plain_line_ends(document: Document) -> tuple[Document, int]:
    """Replace CRLF and CR by LF; return the document and the number of replacements."""
    if not (num_returns := document.text.count("\r")):
        return document, 0
    text = document.text.replace("\r\n", "\n")
    num_bytes = document.num_bytes - (len(document.text) - len(text))
    return replace(document, text=text.replace("\r", "\n"), num_bytes=num_bytes), num_returns


def after(outcomes: Iterator[T], start: int) -> Iterator[T]:
    """Drop the first ``start`` documents, counting errors as documents, and the notes before and between them."""
    for outcome in outcomes:
        if start == 0:
            yield outcome
        elif not isinstance(outcome, Skipped):
            start -= 1


def open_stream(source: Source, limits: Limits | None = None) -> BinaryIO:
    """Open a source, or its span, decompressed with limits, see `hornbook.storage.open_text_source`."""
    if source.span is not None and source.path is not None:
        return open_span(source.path, source.span.start, source.span.end, source.meter)
    return open_text_source(source.path or sys.stdin.buffer, limits, name=str(source), meter=source.meter)


def read_lines(stream: BinaryIO, limit: int, start: int = 0) -> Iterator[Line]:
    """Yield the lines of a file, split at newlines; a line of more than ``limit`` bytes has no content.

    After 64 consecutive blank lines, all those in the buffer are one ``Line``: a file may have billions of them.

    Args:
        stream: the file.
        limit: maximum length of a line in bytes.
        start: offset of the stream's first byte in the file.
    """
    number, offset, num_blank = 1, start, 0
    while content := stream.readline(limit + 1):
        size = len(content)
        mark = len(BYTE_ORDER_MARK) if offset == 0 and content.startswith(BYTE_ORDER_MARK) else 0
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


def line_too_long(where: object, limit: int, remedy: str = "split the document") -> DataError:
    """Return the error for a line that exceeds the limit."""
    return DataError(f"{where}: longer than {format_bytes(limit)}; {remedy}")


def plain_document(data: bytes, source: Source, where: object, offset: int) -> Document:
    """Return the document with these bytes as its text. Raises the errors of ``plain_text``."""
    return Document(plain_text(data, where, offset), source.name, offset, len(data))


def plain_text(data: bytes, where: object, offset: int) -> str:
    """Decode UTF-8. Raises DataError for a zero byte or invalid UTF-8, with ``where`` as prefix and its offset."""
    if (found := data.find(b"\0")) >= 0:
        raise DataError(
            f"{where}: a zero byte at offset {offset + found}, so it is binary or UTF-16, not UTF-8; convert it, or "
            "skip it (`suffixes`, `exclude`, `on_error='skip'`)"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(error, where, offset) from error


def not_utf8(error: UnicodeDecodeError, where: object, offset: int = 0) -> DataError:
    """Return the error for bytes that are not UTF-8 and start at ``offset``, with ``where`` as prefix."""
    position, found = offset + error.start, error.object[error.start]
    return DataError(
        f"{where}: not UTF-8 at byte {position} (0x{found:02x}); {CONVERT}, or skip it "
        "(`suffixes`, `exclude`, `on_error='skip'`)"
    )


def _buffered_blank_lines(stream: BinaryIO) -> bytes:
    """Read the blank lines at the start of the stream's buffer; empty if the stream has no buffer."""
    data = stream.peek() if isinstance(stream, BufferedReader) else b""
    num_blank = len(data) - len(data.lstrip())
    return stream.read(data.rfind(b"\n", 0, num_blank) + 1)
