"""The first pass over wikitext: comments, and the tags whose content is not wikitext.

    a<!-- b -->c <ref>{{cite|...}}</ref> <nowiki>[[d]]</nowiki> <math>x</math>   ->   ac  &#91;&#91;d&#93;&#93; x

As in MediaWiki, such a tag ends at the next closing tag with its name, whatever is between them. The content of
``<nowiki>`` is passed on as character references, which the last pass resolves. Dropped content that a reader would see
leaves a ``GAP``, so that the last pass can clean up the blanks and brackets around it. Formulas are dropped unless they
are as simple as ``x_1 = 2``.
"""

import re
from typing import Final

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
