"""Documents, one after the other, out of plain or compressed text and JSONL files.

    poems/a.txt     "Tyger Tyger"                        Document("Tyger Tyger", "poems/a.txt", offset 0, 11 bytes)
    b.jsonl.gz      {"text": "one"}                      Document("one", "b.jsonl.gz", offset 0, 3 bytes)
                    {"text": "two", "id": 7}             Document("two", "b.jsonl.gz", offset 16, 3 bytes)
    dump.xml.bz2    <page> ... <text>'''a''' [[b]]          Document("a b", "dump.xml.bz2", offset 1189, 3 bytes)

A plain file is one document; of JSONL each line is one. Text is UTF-8, taken as it is: line ends, blanks and unusual
characters stay, and only a byte-order mark at the very beginning goes. What cannot be read stops everything, with the
place in one line, or is counted and passed over, as the user says; nothing is ever repaired in silence. Memory holds
one document at a time. The price: a plain file has to fit there, so it may be 256 MiB at most.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Literal

from hornbook.errors import DataError
from hornbook.storage import open_text_source
from hornbook.storage.system import format_bytes
from hornbook.text.sources import STANDARD_INPUT, content_suffix, find_sources
from hornbook.text.wikipedia.extracted import read_extracted
from hornbook.text.wikipedia.lines import CleanOptions
from hornbook.text.wikipedia.reader import read_dump

JSONL_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_SKIPPED_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Document:
    """A text and where it is from.

    Attributes:
        text: the whole document.
        source: the file as the user named it or as it was found in a folder, ``"-"`` for standard input.
        offset: bytes before the text in the uncompressed file; for JSONL, before its line; for Wikipedia, before its
            page.
        num_bytes: length of the text in UTF-8.
    """

    text: str
    source: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read documents.

    Attributes:
        format: ``"text"``, one document a file; ``"jsonl"``, one a line; ``"auto"``, JSONL for files called ``.jsonl``,
            ``.ndjson`` or ``.json``, also with a compression's ending, and text for all others; ``"wikipedia"``, the
            articles of MediaWiki's XML dumps; ``"wikiextractor"``, the ``<doc>`` blocks that WikiExtractor writes.
        field: where a JSONL line has its text.
        suffixes, exclude: which files to take out of folders, see `hornbook.text.sources.find_sources`.
        on_error: ``"stop"`` at a document that cannot be read, or ``"skip"`` and count it.
        max_document_bytes: of a plain file, uncompressed.
        max_line_bytes: of a JSONL line.
        cleaning: what to keep of an article; of WikiExtractor's, only the title can be dropped.
        processes: to read with, where that helps; the documents and their order do not depend on it.
    """

    format: Literal["auto", "text", "jsonl", "wikipedia", "wikiextractor"] = "auto"
    field: str = "text"
    suffixes: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    on_error: Literal["stop", "skip"] = "stop"
    max_document_bytes: int = 256 << 20
    max_line_bytes: int = 64 << 20
    cleaning: CleanOptions = CleanOptions()
    processes: int = 1


@dataclass(kw_only=True)
class Tally:
    """What was read so far; a reader keeps it up to date.

    Attributes:
        documents, num_bytes: documents handed out, and their bytes.
        empty: documents without a character, left out.
        faults: documents left out because they could not be read; a damaged compressed file counts once.
        messages: what was wrong with the first ten of them.
        skipped: what is no document, counted by kind, as in ``{"redirects": 100}``.
    """

    documents: int = 0
    num_bytes: int = 0
    empty: int = 0
    faults: int = 0
    messages: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def add_fault(self, error: DataError) -> None:
        """Count a document that could not be read."""
        self.faults += 1
        if len(self.messages) < 10:
            self.messages.append(str(error))


def read_documents(
    inputs: Sequence[str | Path], options: ReadOptions | None = None, tally: Tally | None = None
) -> Iterator[Document]:
    """Read the documents of files, folders, globs and ``"-"``, in that order; ``tally`` is kept up to date.

    Raises:
        UserError: an input names nothing, or a file may not be read.
        DataError: a document cannot be read, unless ``options.on_error`` is ``"skip"``.
        StorageError: the disk failed.
    """
    options = options or ReadOptions()
    sources = find_sources(inputs, suffixes=options.suffixes, exclude=options.exclude)
    return read_sources(sources, options, Tally() if tally is None else tally)


def read_sources(sources: Sequence[str], options: ReadOptions, tally: Tally) -> Iterator[Document]:
    """Read the documents of the files that ``find_sources`` lists; raises as ``read_documents``."""
    for source in sources:
        for document in _read_source(source, options, tally):
            if document.text:
                tally.documents += 1
                tally.num_bytes += document.num_bytes
                yield document
            else:
                tally.empty += 1


def _read_source(source: str, options: ReadOptions, tally: Tally) -> Iterator[Document]:
    try:
        if options.format == "wikipedia":
            yield from _read_dump(source, options, tally)
        else:
            with _open(source) as stream:
                yield from _reader(source, options)(stream, source, options, tally)
    except DataError as error:
        if options.on_error == "stop":
            raise
        tally.add_fault(error)


def _reader(source: str, options: ReadOptions) -> Callable[[BinaryIO, str, ReadOptions, Tally], Iterator[Document]]:
    if options.format == "wikiextractor":
        return _read_extracted
    is_jsonl = options.format == "jsonl" or (options.format == "auto" and content_suffix(source) in JSONL_SUFFIXES)
    return _read_lines if is_jsonl else _read_whole


def _open(source: str) -> BinaryIO:
    if source == STANDARD_INPUT:
        return open_text_source(sys.stdin.buffer, name="standard input")
    return open_text_source(Path(source))


def _read_whole(stream: BinaryIO, source: str, options: ReadOptions, tally: Tally) -> Iterator[Document]:
    limit = options.max_document_bytes
    data = stream.read(limit + 1)
    if len(data) > limit:
        raise DataError(
            f"{_name(source)}: holds more than {format_bytes(limit)}, but a plain file is one document; split it, or "
            "put its documents into JSONL"
        )
    start = len(_BYTE_ORDER_MARK) if data.startswith(_BYTE_ORDER_MARK) else 0
    if (place := data.find(b"\0")) >= 0:
        raise DataError(
            f"{_name(source)}: a zero byte at offset {place}, so it is binary or UTF-16, not UTF-8; convert it, or "
            "leave it out (--suffix, --exclude, --on-error skip)"
        )
    yield Document(_decode(data[start:], _name(source), start), source, start, len(data) - start)


def _read_lines(stream: BinaryIO, source: str, options: ReadOptions, tally: Tally) -> Iterator[Document]:
    offset, number, limit = 0, 0, options.max_line_bytes
    while line := stream.readline(limit + 1):
        number += 1
        start = offset + len(_BYTE_ORDER_MARK) * (number == 1 and line.startswith(_BYTE_ORDER_MARK))
        place = f"{_name(source)}, line {number}"
        try:
            if len(line) > limit:
                offset += _skip_line(stream)
                raise DataError(f"{place}: longer than {format_bytes(limit)}; split the document")
            if content := line[start - offset :].strip():
                yield _parse_line(content, place, source, start, options.field)
        except DataError as error:
            if options.on_error == "stop":
                raise
            tally.add_fault(error)
        offset += len(line)


def _read_dump(source: str, options: ReadOptions, tally: Tally) -> Iterator[Document]:
    texts = read_dump(
        source,
        options.cleaning,
        processes=options.processes,
        skipped=tally.skipped,
        on_fault=partial(_stop_or_count, options, tally),
    )
    return (Document(text, source, offset, len(text.encode())) for text, offset in texts)


def _read_extracted(stream: BinaryIO, source: str, options: ReadOptions, tally: Tally) -> Iterator[Document]:
    titles = options.cleaning.titles == "keep"
    on_fault = partial(_stop_or_count, options, tally)
    for text, offset in read_extracted(stream, _name(source), titles=titles, on_fault=on_fault):
        yield Document(text, source, offset, len(text.encode()))


def _stop_or_count(options: ReadOptions, tally: Tally, error: DataError) -> None:
    if options.on_error == "stop":
        raise error
    tally.add_fault(error)


def _skip_line(stream: BinaryIO) -> int:
    """Read to the end of the line that is too long, a block at a time; return how many bytes that took."""
    skipped = 0
    while block := stream.readline(_SKIPPED_BLOCK):
        skipped += len(block)
        if block.endswith(b"\n"):
            break
    return skipped


def _parse_line(line: bytes, place: str, source: str, offset: int, field_name: str) -> Document:
    """The document of a JSONL line.

    Raises:
        DataError: it is not UTF-8 or JSON, or its text is missing, no string, or not Unicode.
    """
    try:
        record = json.loads(_decode(line, place, 0))
    except (ValueError, RecursionError) as error:  # a DataError of _decode is neither
        reason = " ".join(str(error).split())
        raise DataError(f"{place}: not valid JSON ({reason}); for a plain text file use --format text") from error
    text = record.get(field_name) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise DataError(f"{place}: {_explain_missing(record, field_name)}")
    try:
        return Document(text, source, offset, len(text.encode()))
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: character {error.start} of the text is half a surrogate pair; mend the line"
        ) from error


def _explain_missing(record: object, field_name: str) -> str:
    if not isinstance(record, dict):
        return f"expected an object with a field {field_name!r}, found {type(record).__name__}"
    if field_name in record:
        return f"the field {field_name!r} holds {type(record[field_name]).__name__}; expected a string"
    names = ", ".join(f"{name!r:.40}" for name in list(record)[:8]) or "none"
    return f"no field {field_name!r} (fields: {names}); name the one with the text by --field"


def _decode(data: bytes, place: str, offset: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        where = offset + error.start
        raise DataError(
            f"{place}: not UTF-8 at byte {where} (0x{data[error.start]:02x}); convert it, or leave it out "
            "(--suffix, --exclude, --on-error skip)"
        ) from error


def _name(source: str) -> str:
    return "standard input" if source == STANDARD_INPUT else source
