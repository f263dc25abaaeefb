"""From what was written to a checked value: the one validator, for files and for the command line.

    command line  "1e5"    -> parse_text -> 100000.0 --.
    TOML           100_000 -----------------------------> convert(value, spec) -> 100000, or Mistake("expected ...")

Text from the command line is first read as its field would be written in TOML, then both take the same way. Integers
may be written as whole floats (``1e5``), numbers as integers, and ``none`` unsets an optional value (TOML has no null,
so ``"none"`` does it there). A list is an array in TOML and ``a,b`` on the command line; one entry may stand alone, and
``none`` is the empty list. The price: a path cannot be the word ``none`` (``./none`` can), and an entry of a list has
no comma on the command line.
"""

import json
import math
import os
import re
from contextlib import suppress
from pathlib import Path

from hornbook.config.options import Spec

LARGEST_INTEGER = 2**63 - 1
SHOWN_CHARACTERS = 60
"""A value longer than this is cut in messages, so that a mistake stays one readable line."""


class Mistake(Exception):  # noqa: N818 - it never leaves config: the loader turns it into a Problem
    """A value is not what its field expects; the message says what was expected and what came."""


def parse_text(text: object, spec: Spec) -> object:
    """Read command-line text as its field's type; text that does not parse stays text, for ``convert`` to refuse.

    Raises:
        Mistake: there is no text (None), and the field is no boolean, for which the option alone means true.
    """
    if not isinstance(text, str):
        if spec.type is bool:
            return True
        raise Mistake(f"expected {spec.expected} after the option")
    if text.lower() == "none" and spec.optional:
        return None
    if spec.type is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if spec.type is tuple:
        return [] if text.lower() == "none" else [_parse_scalar(part, spec.entry) for part in text.split(",")]
    return _parse_scalar(text, spec.type)


def convert(value: object, spec: Spec) -> object:
    """Check ``value`` against its field and return it as the field's type.

    Raises:
        Mistake: wrong type, out of bounds, or not among the choices.
    """
    if spec.optional and value in (None, "none"):
        return None
    return _entries(value, spec) if spec.type is tuple else _scalar(value, spec)


def absolute(value: str, folder: Path | None) -> str:
    """Resolve a path against the folder that it was written in (None: it is absolute already); ``~`` is home.

    Raises:
        Mistake: there is no home folder.
    """
    if folder is None:
        return value
    try:
        home = Path.home() if value == "~" or value.startswith("~/") else None
    except RuntimeError:
        raise Mistake("the home folder is unknown; write the path out") from None
    return os.path.normpath(folder.absolute() / (value if home is None else home / value[2:]))


def absolute_entry(entry: str, folder: Path | None) -> str:
    """Resolve the path in ``PATH`` or ``NAME=PATH`` as ``absolute`` does; a path with such a beginning is ``./a=b``."""
    name, path = split_entry(entry)
    return absolute(path, folder) if name is None else f"{name}={absolute(path, folder)}"


def split_entry(entry: str) -> tuple[str | None, str]:
    """Split ``NAME=PATH`` into its two parts; the name is None where there is only a path."""
    named = re.fullmatch(r"(\w+)=(.+)", entry, re.DOTALL)
    return (named[1], named[2]) if named else (None, entry)


def kind_of(value: object) -> str:
    """Name the type of a TOML value in words."""
    words = {bool: "a boolean", int: "an integer", float: "a float", str: "a string", dict: "a table", list: "an array"}
    return words.get(type(value), f"a {type(value).__name__}" if value is not None else "none")


def show(value: object, *, quote: bool = True) -> str:
    """Write a value on one short line, much as in TOML; strings without quotes where those would mislead."""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return _cut(f"[{', '.join(show(entry) for entry in value)}]")
    if isinstance(value, list | dict):
        return "[...]" if isinstance(value, list) else "{...}"
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        return f"an integer of {value.bit_length()} bits"
    is_json = isinstance(value, bool) or (quote and isinstance(value, str))
    text = json.dumps(value, ensure_ascii=False) if is_json else str(value)
    return _cut("".join(character if character.isprintable() else "?" for character in text))


def _cut(line: str) -> str:
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 3] + "..."


def _parse_scalar(text: str, kind: type) -> object:
    if kind in (int, float):
        for number in (kind, float):
            with suppress(ValueError):
                return number(text)
    return text


def _entries(value: object, spec: Spec) -> tuple[object, ...]:
    if value is None or value == "none":
        return ()
    if isinstance(value, list | tuple):
        return tuple(_scalar(entry, spec, got="one with {} in it") for entry in value)
    return (_scalar(value, spec),)


def _scalar(value: object, spec: Spec, got: str = "{}") -> object:
    """Check a value that is no list, or an entry of one."""
    if spec.scalar in (int, float):
        return _number(value, spec, got)
    if not isinstance(value, spec.scalar):
        raise _unexpected(value, spec, got)
    if isinstance(value, str):
        _check_string(value, spec)
    return value


def _number(value: object, spec: Spec, got: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unexpected(value, spec, got)
    if isinstance(value, float) and not math.isfinite(value):
        raise Mistake("expected a finite number")
    if abs(value) > LARGEST_INTEGER and int in (type(value), spec.scalar):
        raise Mistake("expected an integer of at most 64 bits")
    if spec.scalar is int and value != int(value):
        raise _unexpected(value, spec, got)
    number = spec.scalar(value)
    if spec.bounds.broken_by(number):
        raise Mistake(f"must be {spec.bounds}")
    return number  # type: ignore[no-any-return]  # int or float, as the spec says


def _check_string(value: str, spec: Spec) -> None:
    if spec.choices and value not in spec.choices:
        raise _unexpected(value, spec)
    if not value:
        raise Mistake("must not be empty")
    if "\0" in value or not _encodes(value):
        raise Mistake("expected UTF-8 text without NUL characters")


def _encodes(value: str) -> bool:
    with suppress(UnicodeEncodeError):
        value.encode()
        return True
    return False


def _unexpected(value: object, spec: Spec, got: str = "{}") -> Mistake:
    if spec.choices and isinstance(value, str):
        return Mistake(f"expected {spec.expected}")
    return Mistake(f"expected {spec.expected}, got {got.format(kind_of(value))}")
