"""Replacement of links by the text that a reader sees; files and categories are dropped.

    [[Seine|the river]]s  [[Paris]]  [[File:a.jpg|thumb|a [[map]]]]  [https://x.org/ its site]  [[fr:Paris]]
        ->   the rivers  Paris    its site

One pass with a stack of open brackets, since captions of files contain links. Unmatched brackets are dropped. The
prefixes of links to files and categories are those declared by the dump (`hornbook.wikipedia.dump.Site`),
MediaWiki's, and some of older pages.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_BRACKETS: Final = re.compile(r"\[\[|\]\]")
_EXTERNAL: Final = re.compile(
    r"\[(?:https?:|ftps?:|mailto:|news:|ircs?:|gopher:|tel:|//)[^\s\[\]<>\"]*+([^\[\]\n]*+)\]", re.IGNORECASE
)
_LANGUAGE: Final = re.compile(
    r"[a-z]{2,3}|simple|zh-[a-z-]{3,12}|be-[a-z-]{5,8}|(?:roa|map|fiu|nds|bat|cbk)-[a-z]{2,4}"
)
_DISAMBIGUATION: Final = re.compile(r"\s*\([^()]*\)$|,[^,]*$")
_MEDIA: Final = re.compile(
    r".*\.(?:jpe?g|png|svg|gif|tiff?|webp|xcf|pdf|djvu|og[agv]|webm|wav|mp3|midi?)\s*", re.IGNORECASE
)
_MAX_DEPTH: Final = 8

_FILE_NAMESPACE, _CATEGORY_NAMESPACE = 6, 14
_FILES: Final = frozenset(
    (
        "file",
        "image",
        "media",
        "bild",
        "datei",
        "fichier",
        "archivo",
        "imagen",
        "immagine",
        "ficheiro",
        "imagem",
        "файл",
    )
)
_CATEGORIES: Final = frozenset(
    ("category", "kategorie", "catégorie", "categoría", "categoria", "kategoria", "категория")
)


@dataclass(frozen=True, kw_only=True)
class LinkNames:
    """The prefixes, in lower case, of a wiki's links without text: those to files and to categories."""

    files: frozenset[str] = _FILES
    categories: frozenset[str] = _CATEGORIES

    @classmethod
    def of_site(cls, namespaces: Mapping[str, int]) -> "LinkNames":
        """Return the prefixes that a dump declares, and the common ones."""
        files = {name for name, number in namespaces.items() if number == _FILE_NAMESPACE}
        categories = {name for name, number in namespaces.items() if number == _CATEGORY_NAMESPACE}
        return cls(files=_FILES | files, categories=_CATEGORIES | categories)


def resolve_links(text: str, names: LinkNames) -> str:
    """Replace each link by its text."""
    if "[[" in text or "]]" in text:
        text = _resolve_internal(text, names)
    if "[" in text:
        text = _EXTERNAL.sub(lambda match: match[1].strip(), text)
    return text


def _resolve_internal(text: str, names: LinkNames) -> str:
    pieces: list[str] = []
    opened: list[int] = []
    position = 0
    for match in _BRACKETS.finditer(text):
        pieces.append(text[position : match.start()])
        position = match.end()
        if match[0] == "[[":
            opened.append(len(pieces))
        elif opened:
            start = opened.pop()
            shown = _shown("".join(pieces[start:]), names) if len(opened) < _MAX_DEPTH else ""
            pieces[start:] = [shown]
    pieces.append(text[position:])
    for start in opened:  # of an unclosed file link, drop the line
        if _prefix(pieces[start]) in names.files | names.categories:
            pieces[start] = "".join(pieces[start].partition("\n")[1:])
    return "".join(pieces)


def _prefix(link: str) -> str:
    """Return the prefix of a link, ``file`` for ``File:a.jpg|thumb``, or an empty string."""
    head, colon, _ = link[:64].partition(":")
    return head.strip().lower().replace("_", " ") if colon else ""


def _shown(link: str, names: LinkNames) -> str:
    """Return the text of ``[[link]]``."""
    target, bar, label = link.partition("|")
    if ":" in target:
        prefix = _prefix(target)
        if prefix in names.files or prefix in names.categories or (bar and _MEDIA.fullmatch(target[-300:])):
            return ""
        if prefix in ("http", "https"):
            return f"[{link}]"
        if not target.startswith((":", " ")) and _LANGUAGE.fullmatch(target.partition(":")[0]):
            return ""
        target = target.strip().removeprefix(":")
    if not bar:
        return target.strip()
    label = label.rpartition("|")[2]
    return label if label.strip() else _DISAMBIGUATION.sub("", target[-200:].strip())
