"""Incremental parsing of MediaWiki's XML export into pages.

    <mediawiki> <siteinfo> ... </siteinfo>
      <page> <title>Anarchism</title> <ns>0</ns> <revision> ... <text>'''Anarchism''' is ...</text> </revision> </page>

        -> Page(title="Anarchism", namespace=0, text="'''Anarchism''' is ...", offset=7193, ...)

The fields ``<ns>``, ``<redirect>`` and ``<model>`` determine whether a page is an article; in old dumps, which lack
them, the names of the namespaces in ``<siteinfo>`` and the word REDIRECT do. Memory holds one page. A document type
declaration, which an entity bomb needs, is an error; nesting, tags and pages are limited.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NoReturn
from xml.parsers import expat

from hornbook.errors import DataError
from hornbook.storage.system import format_bytes

MAX_PAGE_BYTES: Final = 16 << 20
"""Limit for the wikitext of a page; MediaWiki's own limit is 2 MiB."""

_MAX_DEPTH: Final = 16
_MAX_TAG_BYTES: Final = 1 << 20
_MAX_FIELD: Final = 4096
_MAX_NAMESPACES: Final = 10_000
_PROSE: Final = ("", "wikitext")
_OLD_REDIRECT: Final = re.compile(r"\s*#redirect\b", re.IGNORECASE)

_FIELDS: Final = {
    ("mediawiki", "siteinfo", "namespaces", "namespace"): "namespace",
    ("mediawiki", "page", "title"): "title",
    ("mediawiki", "page", "ns"): "ns",
    ("mediawiki", "page", "revision", "model"): "model",
    ("mediawiki", "page", "revision", "text"): "text",
}
_PAGE: Final = ("mediawiki", "page")
_REDIRECT: Final = (*_PAGE, "redirect")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of a dump.

    Attributes:
        title: the title, prefixed with the name of a namespace other than that of articles.
        namespace: the number of the namespace, 0 for articles.
        redirect: whether it redirects to another page.
        prose: whether its content is wikitext, not a style sheet or a program.
        text: the wikitext of its last revision.
        offset: the offset of ``<page>`` in the uncompressed dump.
    """

    title: str
    namespace: int
    redirect: bool
    prose: bool
    text: str
    offset: int

    @property
    def is_article(self) -> bool:
        """Whether it is an article: in namespace 0, not a redirect, and wikitext."""
        return self.namespace == 0 and not self.redirect and self.prose


@dataclass(kw_only=True)
class Site:
    """The properties of a wiki, filled in during parsing and complete before the first page.

    Attributes:
        namespaces: maps names in lower case to numbers, as in ``{"talk": 1, "file": 6}``.
    """

    namespaces: dict[str, int] = field(default_factory=dict)


def read_pages(
    blocks: Iterable[bytes], name: str, site: Site, max_page_bytes: int = MAX_PAGE_BYTES
) -> Iterator[Page | DataError]:
    """Parse every page of a dump, articles or not, and fill in ``site``.

    Yields an error for a page of more than ``max_page_bytes`` in UTF-8. Raises DataError, after the complete pages, if
    the dump is not an export of MediaWiki, not well-formed, truncated, or exceeds a limit.
    """
    parser = _Parser(name, site, max_page_bytes)
    for block in chain(blocks, (b"",)):
        try:
            parser.feed(block)
        except DataError:
            yield from parser.take_pages()
            raise
        yield from parser.take_pages()


class _Parser:
    """A parser with Expat's callbacks and the state of the current page."""

    def __init__(self, name: str, site: Site, max_page_bytes: int) -> None:
        self._name, self._site, self._max_page_bytes = name, site, max_page_bytes
        self._expat = expat.ParserCreate("UTF-8")
        self._expat.buffer_text = True
        self._expat.buffer_size = 1 << 20
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.StartDoctypeDeclHandler = self._refuse_doctype
        self._path: tuple[str, ...] = ()
        self._fed = 0
        self._pages: list[Page | DataError] = []
        self._pieces: list[str] = []
        self._size, self._limit = 0, _MAX_FIELD
        self._key = ""
        self._namespace: int | None = None
        self._begin_page()

    def feed(self, block: bytes) -> None:
        """Parse a piece of XML; an empty one marks the end."""
        try:
            self._expat.Parse(block, not block)
        except expat.ExpatError as error:
            where = f"{self._name}: byte {self._expat.ErrorByteIndex}"
            reason = expat.ErrorString(error.code)
            raise DataError(f"{where}: not well-formed XML ({reason}); download the dump again") from error
        self._fed += len(block)
        if self._fed - max(self._expat.CurrentByteIndex, 0) > _MAX_TAG_BYTES + len(block):
            self._fail(f"a tag longer than {format_bytes(_MAX_TAG_BYTES)}")

    def take_pages(self) -> list[Page | DataError]:
        """Return the pages completed since the last call, with errors for those that are too long."""
        pages, self._pages = self._pages, []
        return pages

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path = path = (*self._path, name)
        if len(path) > _MAX_DEPTH:
            self._fail(f"elements nested more than {_MAX_DEPTH} deep")
        if path == _PAGE:
            self._begin_page()
        elif path == _REDIRECT:
            self._redirect = True
        elif path in _FIELDS:
            self._pieces, self._size = [], 0
            self._limit = self._max_page_bytes if name == "text" else _MAX_FIELD
            self._key = attributes.get("key", "")
            self._expat.CharacterDataHandler = self._collect
        elif len(path) == 1 and name != "mediawiki":
            self._fail(f"expected <mediawiki>, found <{name[:40]}>")

    def _collect(self, text: str) -> None:
        self._size += len(text) if text.isascii() else len(text.encode())
        if self._size <= self._limit:
            self._pieces.append(text)
        else:
            self._pieces.clear()

    def _end(self, name: str) -> None:
        path, self._path = self._path, self._path[:-1]
        if path == _PAGE:
            self._end_page()
        elif path in _FIELDS:
            self._expat.CharacterDataHandler = None
            self._take(_FIELDS[path], "".join(self._pieces))
            self._pieces = []

    def _take(self, field_name: str, value: str) -> None:
        if self._size > self._limit and field_name != "text":
            self._fail(f"a {field_name} longer than {self._limit} bytes")
        if field_name == "namespace":
            if len(self._site.namespaces) >= _MAX_NAMESPACES:
                self._fail(f"more than {_MAX_NAMESPACES} namespaces")
            self._site.namespaces[value.lower()] = self._number(self._key)
        elif field_name == "ns":
            self._namespace = self._number(value)
        elif field_name == "title":
            self._title = value
        elif field_name == "model":
            self._model = value
        else:
            self._text, self._text_size = value, self._size

    def _begin_page(self) -> None:
        self._offset = max(self._expat.CurrentByteIndex, 0)
        self._title, self._model, self._text, self._text_size = "", "", "", 0
        self._namespace = None
        self._redirect = False

    def _end_page(self) -> None:
        if self._text_size > self._max_page_bytes:
            limit = format_bytes(self._max_page_bytes)
            where = f"{self._name}: byte {self._offset}: the page {self._title[:80]!r}"
            self._pages.append(DataError(f"{where} is longer than {limit}; skip it with `on_error='skip'`"))
            return
        is_old_dump = self._namespace is None
        prefix, colon, _ = self._title.partition(":")
        by_title = self._site.namespaces.get(prefix.lower(), 0) if colon else 0
        self._pages.append(
            Page(
                title=self._title,
                namespace=by_title if self._namespace is None else self._namespace,
                redirect=self._redirect or (is_old_dump and _OLD_REDIRECT.match(self._text) is not None),
                prose=self._model in _PROSE,
                text=self._text,
                offset=self._offset,
            )
        )

    def _number(self, text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,9}", text.strip()):
            self._fail(f"expected the number of a namespace, found {text[:40]!r}")
        return int(text)

    def _refuse_doctype(self, *declaration: object) -> None:
        self._fail("a document type declaration, which dumps do not have and entity bombs need")

    def _fail(self, what: str) -> NoReturn:
        raise DataError(
            f"{self._name}: byte {self._expat.CurrentByteIndex}: {what}; expected a dump of a MediaWiki wiki"
        )
