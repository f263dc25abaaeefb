"""Format counts and short lists for messages, spell the arguments that they name, and escape untrusted text.

"`output_length` is 0"                               what a function says, and a caller from Python reads
with spelling(...): spelled("`output_length` is 0")  "--output-length is 0", where a command runs
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_SINGULARS: Final = {
    "documents": "document",
    "empty list items": "empty list item",
    "exact duplicates": "exact duplicate",
    "instances": "instance",
    "near duplicates": "near duplicate",
    "pages of other namespaces": "page of another namespace",
    "pages that are not wikitext": "page that is not wikitext",
    "records without text": "record without text",
    "redirects": "redirect",
}
"""Singular of the plural nouns in reports."""


_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)


_SECRET = r"(?:token|secret|password|passwd|pwd|key(?:id)?|auth|credentials?|sig|signature)"
_SECRETS = (
    re.compile(r"(?<=://)[^/\s?#'\"]*(?=@)"),
    re.compile(rf"(?<=[?&;])((?:[\w%.-]*[-_.])?(?:api|access)?{_SECRET}=)[^&;#\s'\"]*", re.I),
    re.compile(
        rf"(?<!\S)(--(?!start-|stop-)(?:[\w.-]*[-_.])?(?:api|access)?{_SECRET}(?:=|\s+(?!-)))(?:'[^']*'|[^\s']+)", re.I
    ),
)
"""A password of an address, a value of its query, and a value of an option."""
_MOST_NAMED: Final = 4
_spelling: list[Callable[[str], str]] = []
"""The innermost spelling is the last."""


def spelled(message: str) -> str:
    """Return a message in which arguments, in backquotes, are spelled for the user: as the options of a command."""
    return _spelling[-1](message) if _spelling else message


@contextmanager
def spelling(spell: Callable[[str], str]) -> Iterator[None]:
    """Let ``spelled`` call ``spell`` during the block."""
    _spelling.append(spell)
    try:
        yield
    finally:
        _spelling.pop()


def first_few(problems: list[str]) -> list[str]:
    """Return the first four problems and, if there are more, a line with the number of the others."""
    more = len(problems) - _MOST_NAMED
    return [*problems[:_MOST_NAMED], f"so are {more:,} more"] if more > 0 else problems


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, given in the singular: "1 file", "0 files", "1,234 empty files"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def counted_kind(count: int, kind: str) -> str:
    """Return a count with its kind, given as in reports: "1 redirect", "2 redirects", "1 too short"."""
    return f"{count:,} {_SINGULARS.get(kind, kind) if count == 1 else kind}"


def visible(text: str) -> str:
    r"""Return ``text`` with characters that move the cursor, hide or reorder text escaped, as in ``\x1b``."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text.replace("\r\n", "\n"))


def as_text(name: str) -> str:
    """Return a file name, or a message with one, as valid Unicode: bytes that are not UTF-8 are escaped."""
    return name.encode(errors="backslashreplace").decode()


def one_line(text: str) -> str:
    """Return ``visible(text)`` with line ends and tabs escaped, too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def redacted(text: str) -> str:
    """Return a recipe or command line without passwords and keys in addresses, and without values of secret options.

    ``https://me:pass@host/x?token=ab --api-key cd`` -> ``https://...@host/x?token=... --api-key ...``
    """
    password, *named = _SECRETS
    text = password.sub("...", text)
    for secret in named:
        text = secret.sub(lambda match: f"{match[1]}...", text)
    return text
