"""Words that go with a number."""

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


def counted(count: int, noun: str) -> str:
    """Say how many there are of what is named in the singular: "1 file", "0 files", "1,234 empty files"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def counted_kind(count: int, kind: str) -> str:
    """Say how many there are of a kind, as reports name it: "1 redirect", "2 redirects", "1 too short"."""
    return f"{count:,} {_SINGULARS.get(kind, kind) if count == 1 else kind}"
