"""Format counts and short lists for messages, spell the arguments that they name, and escape untrusted text.

    hornbook (Python)      `output_length=0` is ...; `data.train` names ...; read it with `format='text'`
    command line           --output-length 0 is ...; --data.train names ...; read it with --from text

Errors come from functions, whose callers know arguments and recipe keys, so messages name those, in backquotes, with
a value as Python writes it. Which option sets an argument is known to the command's parser only. A name that is no
option of the command, and other text in backquotes, stays as it is.
"""

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from hornbook.errors import HornbookError, RecipeError

if TYPE_CHECKING:
    import argparse

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
_NAMED = re.compile(r"`(?P<name>[a-z]\w*(?:\.\w+)?)(?:=(?P<value>[^`]+))?`")
_options: "list[Mapping[str, argparse.Action]]" = []
"""The options of the running commands, the innermost last, by the names of the arguments that they set."""


@contextmanager
def spelling(actions: "Iterable[argparse.Action]") -> Iterator[None]:
    """Spell messages (`spelled`), and those of the block's errors, for the options among the actions of a parser."""
    _options.append({action.dest.replace("-", "_"): action for action in actions if action.option_strings})
    try:
        yield
    except HornbookError as error:
        if isinstance(error, RecipeError):
            error.problems = [spelled(problem) for problem in error.problems]
        error.args = (spelled(str(error)), *error.args[1:])
        raise
    finally:
        _options.pop()


def spelled(message: str) -> str:
    """Return a message in which arguments, in backquotes, are spelled for the user: as the options of a command."""
    return _NAMED.sub(lambda match: _spell(match, _options[-1].get(match["name"])), message) if _options else message


def _spell(match: re.Match[str], action: "argparse.Action | None") -> str:
    if action is None:
        return match[0]
    flag, value = action.option_strings[0], match["value"]
    return flag if value is None or action.nargs == 0 else f"{flag} {_word(value)}"


def _word(value: str) -> str:
    """Return a value as typed in a shell; what is not a string of Python, such as a placeholder, is unchanged."""
    try:
        read = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    return shlex.quote(read) if isinstance(read, str) else value


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
