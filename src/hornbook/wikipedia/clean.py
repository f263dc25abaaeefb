"""Conversion of wikitext to prose.

    '''Anarchism''' is a [[political philosophy]].<ref>...</ref>        Anarchism is a political philosophy.
    {{Infobox ...}}                                             ->
    == History ==                                                       History
    * [[Zeno of Citium|Zeno]]                                           - Zeno

Six passes, each over the result of the previous one and in MediaWiki's order: comments and opaque tags, templates,
tables, links, tags, lines. Each pass scans forward with at most a stack, so time is linear in the length of the page,
and no input is an error. The trade-off: there is no syntax tree, so unusual markup is dropped.

Links are resolved with a stack of open brackets, since captions of files contain links; unmatched brackets are dropped.
The prefixes of links to files and categories are those declared by the dump (`hornbook.wikipedia.dump.Site`),
MediaWiki's, and some of older pages. Lines become headings, list items and paragraphs. A heading is kept if there is
text between it and the next heading of its level. In a line, quotes for italics and bold are removed by MediaWiki's
rules, character references become characters, and blanks, commas and brackets around a ``GAP`` that became superfluous
are removed. A line that begins with ``|`` is a table row and dropped.
"""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hornbook.text.reading import CleanOptions
from hornbook.wikipedia.markup import BREAK, GAP, drop_tables, resolve_html, resolve_opaque, resolve_templates

_REFERENCE: Final = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
_QUOTES: Final = re.compile(r"''+")
_SWITCH: Final = re.compile(r"__[^\W\d_a-z]{3,40}__")
_AROUND_GAP: Final = re.compile(r"(?:([ \t]*+)([(\[]))?+([ \t,;:\0]++)([)\].!?])?+")
_BLANKS: Final = re.compile(r"[ \t]{2,}")
_BLANK_LIKE: Final = {ord(character): " " for character in "\xa0\u2002\u2003\u2007\u2009\u200a\u202f"} | {
    ord(character): None for character in "\xad\u200e\u200f\ufeff\u2060"
}
_STRANGE: Final = re.compile("[\xa0\xad\u2002\u2003\u2007\u2009\u200a\u200e\u200f\u202f\u2060\ufeff]")
_WORD: Final = re.compile(r"\w")
_LIST_MARKS: Final = "*#;"
_MARKS: Final = _LIST_MARKS + ":"
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
    re.findall(r"\w+", "file image media bild datei fichier archivo imagen immagine ficheiro imagem файл")
)
_CATEGORIES: Final = frozenset(
    re.findall(r"\w+", "category kategorie catégorie categoría categoria kategoria категория")
)


@dataclass(kw_only=True)
class ItemCount:
    """Counts of list items (``*``, ``#``).

    Attributes:
        total: number of list items.
        empty: number of those without a word after cleaning, for example because a template had the text.
    """

    total: int = 0
    empty: int = 0


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


def clean(
    wikitext: str, options: CleanOptions | None = None, names: LinkNames | None = None, items: ItemCount | None = None
) -> str:
    """Return the prose of a page: one line per paragraph, heading and list item; list items begin with "- ".

    Args:
        wikitext: the page.
        options: the parts to keep.
        names: the wiki's prefixes of links to files and categories.
        items: updated with the number of list items.
    """
    text = wikitext
    for control in (GAP, BREAK):
        if control in text:
            text = text.replace(control, "")
    if "<" in text:
        text = resolve_opaque(text)
    if "{{" in text or "}}" in text:
        text = resolve_templates(text)
    text = drop_tables(text)
    text = resolve_links(text, names or LinkNames())
    if "<" in text:
        text = resolve_html(text)
    return resolve_lines(text, options or CleanOptions(), items)


def clean_page(
    title: str, wikitext: str, options: CleanOptions, names: LinkNames, items: ItemCount | None = None
) -> str:
    """Return the title, if ``options`` keep it, and the prose of a page; empty without prose; see ``clean``."""
    prose = clean(wikitext, options, names, items)
    return f"{title}\n\n{prose}" if prose and options.titles == "keep" else prose


def resolve_lines(text: str, options: CleanOptions, items: ItemCount | None = None) -> str:
    """Convert text without tags, templates, tables and links to prose; count list items in ``items``."""
    items = items or ItemCount()
    lines: list[str] = []
    headings: list[tuple[int, str]] = []  # (level, text) of headings without text below them so far
    blank = False
    for line in text.split("\n"):
        line = line.strip(" \t\r\0")
        if not line:
            blank = True
            continue
        if line[0] == "=" and (found := _heading(line)):
            while headings and headings[-1][0] >= found[0]:
                headings.pop()
            headings.append(found)
            continue
        shown = _show(line, options, items)
        if not shown:
            continue
        if headings and options.headings == "keep":
            lines += [part for _, heading in headings for part in ("", heading)]
        elif blank or headings:
            lines.append("")
        headings.clear()
        lines.append(shown)
        blank = False
    return "\n".join(lines).strip("\n")


def clean_line(line: str) -> str:
    """Resolve quotes, character references and gaps in a line, and remove superfluous blanks."""
    if "''" in line:
        line = _drop_quotes(line)
    if "&" in line:
        line = _REFERENCE.sub(_character, line)
    if "__" in line:
        line = _SWITCH.sub("", line)
    if _STRANGE.search(line):
        line = line.translate(_BLANK_LIKE)
    if GAP in line:
        line = _AROUND_GAP.sub(_close_gap, line)
    if "  " in line or "\t" in line:
        line = _BLANKS.sub(" ", line)
    if BREAK in line:
        line = "\n".join(filter(None, map(str.strip, line.split(BREAK))))
    return line.strip() if _WORD.search(line) else ""


def _heading(line: str) -> tuple[int, str] | None:
    """Return level and text of a line ``== text ==``; None for other lines."""
    if len(line) < 3 or line[-1] != "=":
        return None
    opening, closing = len(line) - len(line.lstrip("=")), len(line) - len(line.rstrip("="))
    level = min(opening, closing, 6, (len(line) - 1) // 2)
    return (level, text) if (text := clean_line(line[level : len(line) - level])) else None


def _show(line: str, options: CleanOptions, items: ItemCount) -> str:
    """Return the cleaned text of a line that is not a heading; count it if it is a list item."""
    first = line[0]
    if first in _MARKS:
        content = line.lstrip(_MARKS + " ")
        marks = line[: len(line) - len(content)]
        is_list = any(mark in _LIST_MARKS for mark in marks)
        if is_list and options.lists == "drop":
            return ""
        shown = clean_line(content)
        if "*" not in marks and "#" not in marks:
            return shown
        items.total += 1
        items.empty += not shown
        return f"- {shown}" if shown else ""
    if first == "|" or line.startswith("{|") or (first == "!" and ("!!" in line or "|" in line)):
        return ""
    if line.startswith("----"):
        line = line.lstrip("-")
    return clean_line(line)


def _drop_quotes(line: str) -> str:
    """Remove the quotes that mark italics and bold, by the rules of MediaWiki's ``doQuotes``.

    Two quotes are italics, three bold, five both; four are an apostrophe and bold; more are apostrophes and both. If
    italics and bold are both left open, one bold is an apostrophe and italics: ``''Titanic'''s``.
    """
    runs = list(_QUOTES.finditer(line))
    lengths = [len(run[0]) for run in runs]
    bold = sum(length in (3, 4) or length >= 5 for length in lengths)
    italic = sum(length == 2 or length >= 5 for length in lengths)
    spare = _spare_apostrophe(line, runs) if bold % 2 and italic % 2 else -1
    pieces, position = [], 0
    for number, run in enumerate(runs):
        pieces.append(line[position : run.start()])
        if number == spare or len(run[0]) == 4 or len(run[0]) > 5:
            pieces.append("'")
        position = run.end()
    pieces.append(line[position:])
    return "".join(pieces)


def _spare_apostrophe(line: str, runs: list[re.Match[str]]) -> int:
    """Return which run of three quotes has an apostrophe: after a one-letter word, else a longer one, else a blank."""
    choices = {0: -1, 1: -1, 2: -1}
    for number, run in enumerate(runs):
        if len(run[0]) == 3:
            start = run.start()
            before, one_before = line[start - 1 : start], line[start - 2 : start - 1] if start > 1 else ""
            kind = 2 if before in (" ", "") else 0 if one_before == " " else 1
            choices[kind] = number if choices[kind] < 0 else choices[kind]
    return next((number for number in choices.values() if number >= 0), -1)


def _character(match: re.Match[str]) -> str:
    character = html.unescape(match[0])
    return " " if character == "\n" else character


def _close_gap(match: re.Match[str]) -> str:
    r"""Return the replacement of a gap with its marks, as in ``(\0; born 1879)``, ``old \0, and``, ``water (\0).``."""
    before, opening, run, closing = match.groups()
    if GAP not in run:
        return match[0]
    if opening and closing in (")", "]"):
        return ""
    if opening:
        return f"{before}{opening}{closing or ''}"
    if closing or match.start() == 0 or match.end() == len(match.string):
        return closing or ""
    separator = next((character for character in run if character in ",;:"), "")
    return separator + (" " if " " in run or "\t" in run else "")


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
