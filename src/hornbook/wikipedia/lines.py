r"""The last pass over wikitext: lines become headings, list items and paragraphs, and each line is cleaned.

    == History ==                        History
    * one                        ->      - one
    :The ''cat''&nbsp;(\0) sat\0.         The cat sat.

A heading is kept if there is text between it and the next heading of its level. In a line, quotes for italics and bold
are removed by MediaWiki's rules, character references become characters, and blanks, commas and brackets around a
``GAP`` that became superfluous are removed. A line that begins with ``|`` is a table row and dropped.
"""

import html
import re
from dataclasses import dataclass
from typing import Final

from hornbook.text.reading import CleanOptions
from hornbook.wikipedia.tags import BREAK, GAP

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


@dataclass(kw_only=True)
class ItemCount:
    """Counts of list items (``*``, ``#``).

    Attributes:
        total: number of list items.
        empty: number of those without a word after cleaning, for example because a template had the text.
    """

    total: int = 0
    empty: int = 0


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
