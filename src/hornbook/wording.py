"""Words that go with a number, short lists, and text from outside made fit to be shown."""

import re
from typing import Final

_SINGULARS: Final = {
    "documents": "document",
    "empty list items": "empty list item",
    "exact duplicates": "exact duplicate",
    "instances": "instance",
    "near duplicates": "near duplicate",
    "pages of other namespaces": "page of another namespace",
    "pages that are not wikitext": "page that is not wikitext",
    "redirects": "redirect",
}
"""Kinds that reports name in the plural."""


_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)


_MOST_NAMED: Final = 4


def first_few(problems: list[str]) -> list[str]:
    """Return the first four of many problems of one kind, and how many more there are."""
    more = len(problems) - _MOST_NAMED
    return [*problems[:_MOST_NAMED], f"so are {more:,} more"] if more > 0 else problems


def counted(count: int, noun: str) -> str:
    """Say how many there are of what is named in the singular: "1 file", "0 files", "1,234 empty files"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def counted_kind(count: int, kind: str) -> str:
    """Say how many there are of a kind, as reports name it: "1 redirect", "2 redirects", "1 too short"."""
    return f"{count:,} {_SINGULARS.get(kind, kind) if count == 1 else kind}"


def visible(text: str) -> str:
    r"""``text`` with all that could move a cursor, hide or reorder letters written as an escape such as ``\x1b``."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text.replace("\r\n", "\n"))


def as_text(name: str) -> str:
    """Return a file's name, or a message with one, as Unicode: a byte that is no UTF-8 becomes an escape."""
    return name.encode(errors="backslashreplace").decode()


def one_line(text: str) -> str:
    """``visible``, with line ends and tabs written as escapes too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")
