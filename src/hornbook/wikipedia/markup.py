"""Passes over wikitext that leave links, headings and lists to the last one: tags, then templates and tables.

    a<!-- b -->c <ref>{{cite|...}}</ref> <nowiki>[[d]]</nowiki> <math>x</math>   ->   ac  &#91;&#91;d&#93;&#93; x
    {{Infobox|a={{b}}}}The {{lang|fr|Seine}} is {{convert|777|km|mi}} long.{{cn}}   ->   The Seine is 777 km long.

The first pass resolves comments and the tags whose content is not wikitext. As in MediaWiki, such a tag ends at the
next closing tag with its name, whatever is between them. The content of ``<nowiki>`` is passed on as character
references, which the last pass resolves. Dropped content that a reader would see leaves a ``GAP``, so that the last
pass can clean up the blanks and brackets around it. Formulas are dropped unless they are as simple as ``x_1 = 2``.

Templates and tables are removed in one pass each; a template that stands for words is replaced by them. A stack of open
braces handles nesting in linear time; unmatched braces are dropped, and the text between them is kept. No template is
fetched or expanded: ``phrases`` has some hundred of English Wikipedia by name, and any other leaves a ``GAP``.
"""

import re
from typing import Final

from hornbook.wikipedia.phrases import PHRASES

GAP: Final = "\0"
"""Marks dropped content in a sentence; this character cannot occur in XML."""
BREAK: Final = "\v"
"""Marks a line break inside a line; this character cannot occur in XML, either."""

_FORMULAS: Final = ("math", "chem", "ce")
_CODE: Final = ("syntaxhighlight", "source")
_PROTECTED: Final = ("nowiki", "pre")
_DROPPED: Final = (
    "ref|references|gallery|timeline|score|imagemap|hiero|templatestyles|graph|mapframe|maplink|inputbox|section"
    "|indicator|categorytree|includeonly|phonos|style|script|rss|charinsert|listing"
)
_OPAQUE: Final = "|".join((_DROPPED, *_FORMULAS, *_CODE, *_PROTECTED))
_OPENING: Final = re.compile(rf"<(?:!--|({_OPAQUE})\b([^<>]*)>)", re.IGNORECASE)
_NEXT: Final = {name: re.compile(rf"<(/?){name}\b[^<>]*>", re.IGNORECASE) for name in _OPAQUE.split("|")}
_SIMPLE_FORMULA: Final = re.compile(r"[\w\s+\-−=<>()/.,*'!|:^]{1,60}")
_PROTECT: Final = {ord(character): f"&#{ord(character)};" for character in "[]{}|<>'=*#:;!_-~"}

_KNOWN: Final = (
    "abbr|b|bdi|bdo|big|blockquote|br|caption|center|cite|code|col|colgroup|data|dd|del|dfn|div|dl|dt|em|font|h[1-6]"
    "|hr|i|img|ins|kbd|label|li|link|mark|meta|nobr|noinclude|ol|onlyinclude|p|poem|q|rb|rp|rt|rtc|ruby|s|samp|small|span"
    "|strike|strong|sub|sup|table|tbody|td|tfoot|th|thead|time|tr|tt|u|ul|var|wbr|translate|tvar|languages"
)
_TAG: Final = re.compile(rf"<(/?)({_KNOWN}|{_OPAQUE})\b[^<>]*>", re.IGNORECASE)
_RAISED: Final = re.compile(r"<sup\b[^<>]*>([0-9+\-−n]{1,6})</sup\s*>", re.IGNORECASE)
_RAISE: Final = str.maketrans("0123456789+-−n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻ⁿ")
_TABLE: Final = re.compile(r"<(/?)table\b[^<>]*>", re.IGNORECASE)
_BLOCKS: Final = ("blockquote", "center", "div", "dl", "ol", "p", "poem", "table", "ul")
_STANDS_FOR: Final = (
    dict.fromkeys((*_BLOCKS, "hr", "tr", "caption", "dt", "dd"), "\n")
    | dict.fromkeys(("td", "th"), " ")
    | {"br": BREAK, "li": "\n* "}
)
_ENDS_AS: Final = dict.fromkeys((*_BLOCKS, "h1", "h2", "h3", "h4", "h5", "h6"), "\n")
_BRACES: Final = re.compile(r"\{\{+|\}\}+")
_BARS: Final = re.compile(r"\[\[|\]\]|\|")
_NAMED: Final = re.compile(r"\s*([A-Za-z0-9_ -]{1,30}?)\s*=")
_TABLE_MARK: Final = re.compile(r"^[ \t:*#]*\{\||^[ \t]*(\|\})", re.MULTILINE)
_MAX_DEPTH: Final = 12
_MAX_NAME: Final = 48


def resolve_opaque(text: str) -> str:
    """Drop comments and opaque tags, or replace tags by their content as character references."""
    pieces: list[str] = []
    position = 0
    unclosed: set[str] = set()
    while match := _OPENING.search(text, position):
        pieces.append(text[position : match.start()])
        position = match.end()
        name = (match[1] or "").lower()
        if not name:
            position = _end_of_comment(text, match.start())
        elif not match[2].endswith("/") and name not in unclosed:
            following = _NEXT[name].search(text, position)
            if following is None:
                unclosed.add(name)
            elif following[1]:
                pieces.append(_replacement(name, text[position : following.start()]))
                position = following.end()
    pieces.append(text[position:])
    return "".join(pieces)


def resolve_html(text: str) -> str:
    """Drop HTML tables and all tags that MediaWiki knows; breaks and blocks become line ends."""
    if "<table" in text:
        text = drop_nested(text, _TABLE)
    if "<sup" in text:
        text = _RAISED.sub(lambda match: match[1].translate(_RAISE), text)
    return _TAG.sub(_replace_tag, text)


def _end_of_comment(text: str, start: int) -> int:
    """Return the position after a comment, or after the line if the comment is alone on it."""
    end = text.find("-->", start + 4)
    end = len(text) if end < 0 else end + 3
    alone = (start == 0 or text[start - 1] == "\n") and text[end : end + 1] == "\n"
    return end + 1 if alone else end


def _replacement(name: str, content: str) -> str:
    if name in _PROTECTED:
        return content.translate(_PROTECT)
    if name in _FORMULAS:
        return content.strip().translate(_PROTECT) if _SIMPLE_FORMULA.fullmatch(content.strip()) else GAP
    if name in _CODE and "\n" not in content:
        return content.strip().translate(_PROTECT)
    return ""


def drop_nested(text: str, marks: re.Pattern[str], unclosed: str = "") -> str:
    """Drop the text between pairs of nested marks.

    ``marks`` matches opening and closing marks; only closing ones have a group 1. ``unclosed`` replaces an opening mark
    without a closing one.
    """
    pieces: list[str] = []
    opened: list[int] = []
    position = 0
    for match in marks.finditer(text):
        pieces.append(text[position : match.start()])
        position = match.end()
        if not match[1]:
            opened.append(len(pieces))
            pieces.append(unclosed)
        elif opened:
            del pieces[opened.pop() :]
    pieces.append(text[position:])
    return "".join(pieces)


def _replace_tag(match: re.Match[str]) -> str:
    name = match[2].lower()
    return _ENDS_AS.get(name, "") if match[1] else _STANDS_FOR.get(name, "")


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
    return drop_nested(text, _TABLE_MARK, unclosed="|")  # makes the line a table row, which the last pass drops


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
