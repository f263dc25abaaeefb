"""Web archives: the text of a page is a document.

    CC-MAIN-…warc.wet.gz    conversion records: text                  Document(the text, offset of the record)
    CC-MAIN-…warc.gz        responses: HTML, without what surrounds the main content (resiliparse), or plain text
                            resources: the same, without HTTP headers

The offset is that of the record in the uncompressed file, where its headers have the URL and the languages. Other types
of records have no text and are passed over. Responses with another status than 200, other types of content than HTML
and plain text, encodings other than gzip, responses that are too long, and implausibly deep nesting are skipped and
counted.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from hornbook.errors import DataError, HornbookError
from hornbook.extras import require
from hornbook.formats.warc import Record, decode_body, parse_response, read_headers_at, read_records
from hornbook.storage import Limits
from hornbook.storage.system import format_bytes
from hornbook.text.reading import (
    STANDARD_INPUT,
    Document,
    Outcome,
    ReadOptions,
    Skipped,
    Source,
    open_stream,
    plain_text,
)

WARC_SUFFIXES: Final = (".warc", ".wet", ".wat")
WARC_LIMITS: Final = Limits(num_members=1 << 26)
"""Each record is a member of the compressed file."""
_LANGUAGES: Final = "warc-identified-content-language"
_TYPES: Final = ("conversion", "response", "resource")
_HTML: Final = ("text/html", "application/xhtml+xml")
_NO_TEXT: Final = Skipped("records without text")
_TAG: Final = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_WITHOUT_CONTENT: Final = "area base br col embed hr img input link meta param source track wbr"
_WITHOUT_END: Final = "p li dt dd tr td th thead tbody tfoot option optgroup colgroup rt rp html head body"
_UNNESTED: Final = frozenset(f"{_WITHOUT_CONTENT} {_WITHOUT_END}".split())
"""Elements that add no depth of their own: they have no content, or the next one ends them."""
_MOST_NESTED: Final = 1000
"""Extraction takes time proportional to the square of the depth; browsers limit it to some 500."""


def read_web_archive(stream: BinaryIO, source: Source, options: ReadOptions) -> Iterator[Outcome]:
    """Read the text of each page as a document.

    Raises:
        UserError: the file has HTML, and resiliparse is not installed.
        DataError: a record is malformed or truncated.
    """
    limit = options.max_document_bytes
    for record in read_records(stream, str(source), _may_have_text, limit):
        if not _may_have_text(record.headers):
            continue
        where = f"{source}, the record at byte {record.offset}"
        try:
            text = _text_of(record, where, limit)
            languages = record.headers.get(_LANGUAGES)
            yield (
                _NO_TEXT if text is None else Document(text, source.name, record.offset, len(text.encode()), languages)
            )
        except DataError as error:
            yield error


class Page(NamedTuple):
    """What the headers of a record say of a page.

    Attributes:
        url: ``WARC-Target-URI``; None if the record has none.
        languages: ``WARC-Identified-Content-Language``, ISO 639-3, the most frequent first, as in ``"rus,eng"``; None
            if the record has none, as in WARC files of Common Crawl, unlike its WET files.
    """

    url: str | None
    languages: str | None


class PageFinder:
    """Finds records by source and offset; the last file remains open, so ascending offsets read it once."""

    def __init__(self) -> None:
        self._source, self._position = "", 0
        self._stream: BinaryIO | None = None

    def find(self, source: str, offset: int) -> Page | None:
        """Return the page of a record; None if the source is gone or has no record there."""
        try:
            if offset < 0 or source == STANDARD_INPUT or not Path(source).is_file():
                return None
            if self._stream is None or source != self._source or offset < self._position:
                self._open(source)
            assert self._stream is not None, "just opened"
            headers, self._position = read_headers_at(self._stream, source, self._position, offset)
        except (HornbookError, OSError, ValueError):  # moved or changed since, or a name that no file can have
            self.close()
            return None
        return Page(headers.get("warc-target-uri"), headers.get(_LANGUAGES))

    def close(self) -> None:
        """Close the last file."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    def _open(self, source: str) -> None:
        self.close()
        self._stream, self._source, self._position = open_stream(Source(source, Path(source)), WARC_LIMITS), source, 0


def _may_have_text(headers: Mapping[str, str]) -> bool:
    return headers.get("warc-type", "").lower() in _TYPES


def _text_of(record: Record, where: str, limit: int) -> str | None:
    """Return the text of a page; None if it has none that can be read."""
    content, kind, media = record.content, record.headers["warc-type"].lower(), record.headers.get("content-type", "")
    if content is None:
        if kind == "conversion":
            raise DataError(f"{where}: longer than {format_bytes(limit)}; split the document")
        return None  # a film, for example
    response = parse_response(content) if kind == "response" else None
    if kind == "response":
        if response is None or response.status != 200:
            return None
        media = response.headers.get("content-type", "")
    media_type, _, parameters = media.partition(";")
    media_type = record.headers.get("warc-identified-payload-type", media_type).strip().lower()
    if media_type not in (*_HTML, "text/plain"):
        return None
    if response is not None:
        try:
            content = decode_body(response, limit)
        except DataError as error:
            raise DataError(f"{where}: {error}; download the file again") from error
    if content is None:
        return None
    if kind == "conversion":
        return plain_text(content, where, 0)
    charset = re.search(r"charset=[\"']?([\w.:-]+)", parameters)
    text = _decoded(content, charset[1] if charset else None, is_html=media_type in _HTML)
    return _text_of_html(text) if media_type in _HTML else text


def _decoded(content: bytes, charset: str | None, *, is_html: bool) -> str:
    """Decode a page as browsers do: UTF-8 if it is, else what the server says, the page says, or its bytes suggest."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        encodings = require("resiliparse.parse.encoding", extra="warc", purpose="reading pages of web archives")
        found = charset or encodings.detect_encoding(content, from_html_meta=is_html) or "cp1252"
        return str(encodings.bytes_to_str(content, encodings.map_encoding_to_html5(found) or "cp1252", "replace"))


def _text_of_html(html: str) -> str | None:
    extract = require("resiliparse.extract.html2text", extra="warc", purpose="reading HTML of web archives")
    if _depth_of(html) > _MOST_NESTED:
        return None
    return str(extract.extract_plain_text(html, main_content=True)).strip()


def _depth_of(html: str) -> int:
    """Return a bound of the depth of nesting."""
    depth = deepest = 0
    for match in _TAG.finditer(html):
        if match[2].lower() not in _UNNESTED:
            depth = max(0, depth - 1) if match[1] else depth + 1
            deepest = max(deepest, depth)
    return deepest
