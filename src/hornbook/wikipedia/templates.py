"""Removal of templates and tables, one pass each; a template that stands for words is replaced by them.

    {{Infobox|a={{b}}}}The {{lang|fr|Seine}} is {{convert|777|km|mi}} long.{{cn}}   ->   The Seine is 777 km long.

A stack of open braces handles nesting in linear time; unmatched braces are dropped, and the text between them is kept.
No template is fetched or expanded: ``phrases`` has some hundred of English Wikipedia by name, and any other leaves a
``GAP`` for the last pass.
"""

import re
from typing import Final

from hornbook.wikipedia.phrases import PHRASES
from hornbook.wikipedia.tags import GAP, drop_nested

_BRACES: Final = re.compile(r"\{\{+|\}\}+")
_BARS: Final = re.compile(r"\[\[|\]\]|\|")
_NAMED: Final = re.compile(r"\s*([A-Za-z0-9_ -]{1,30}?)\s*=")
_TABLE: Final = re.compile(r"^[ \t:*#]*\{\||^[ \t]*(\|\})", re.MULTILINE)
_MAX_DEPTH: Final = 12
_MAX_NAME: Final = 48


def resolve_templates(text: str) -> str:
    """Replace each ``{{...}}`` by its phrase, if known, else by a ``GAP``, and each ``{{{...}}}`` by a ``GAP``."""
    pieces: list[str] = []
    opened: list[tuple[int, int]] = []  # (index in pieces of the content, number of braces) of each open template
    position = 0
    for match in _BRACES.finditer(text):
        pieces.append(text[position : match.start()])
        position = match.end()
        count = position - match.start()
        if match[0][0] == "{":
            opened += [(len(pieces), 2)] * (count // 2 - count % 2)
            opened += [(len(pieces), 3)] * (count % 2)
            continue
        while count > 1 and opened:
            start, width = opened.pop()
            count -= min(width, count)
            phrase = _phrase(pieces, start) if width == 2 and len(opened) < _MAX_DEPTH else GAP
            pieces[start:] = [phrase]
    pieces.append(text[position:])
    return "".join(pieces)


def drop_tables(text: str) -> str:
    """Drop each ``{| ... |}`` with its content; of an unclosed one, the first line."""
    if "{|" not in text and "|}" not in text:
        return text
    return drop_nested(text, _TABLE, unclosed="|")  # makes the line a table row, which the last pass drops


def _phrase(pieces: list[str], start: int) -> str:
    """Return the phrase, or a ``GAP``, of the template whose content begins at ``pieces[start]``."""
    if start == len(pieces):
        return GAP
    head = pieces[start][: _MAX_NAME + 1]
    name, bar, _ = head.partition("|")
    if not bar and len(head) > _MAX_NAME:
        return GAP
    word, colon, _ = name.partition(":")
    name = " ".join(name.replace("_", " ").lower().split())
    known = PHRASES.get(name)
    if known is None and colon:
        known = PHRASES.get(word.strip().lower() + ":")
    if known is None and name.startswith("lang-"):
        known = PHRASES["nowrap"]
    if known is None:
        return GAP
    content = "".join(pieces[start:])
    positional, named = _arguments(content.partition("|")[2] if not colon else content.partition(":")[2])
    return known(positional, named) or GAP


def _arguments(content: str) -> tuple[list[str], dict[str, str]]:
    """Split at the bars outside of links; return positional arguments and named ones, ``name=value``."""
    values: list[str] = []
    depth = position = 0
    for match in _BARS.finditer(content):
        if match[0] == "|":
            if depth == 0:
                values.append(content[position : match.start()])
                position = match.end()
        else:
            depth = max(0, depth + (1 if match[0] == "[[" else -1))
    values.append(content[position:])
    positional: list[str] = []
    named: dict[str, str] = {}
    for value in values:
        if name := _NAMED.match(value):
            named[name[1].strip().lower()] = value[name.end() :].strip()
        else:
            positional.append(value)
    numbered = [named[str(number)] for number in range(1, 10) if str(number) in named]
    return (positional or numbered), named
