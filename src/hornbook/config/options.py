"""Recipe options: dataclass fields with help, bounds and a type, and the validator of their values.

    learning_rate: float = option(6e-4, help="peak learning rate", above=0)

    describe(AdamWConfig)["learning_rate"] -> Spec(type=float, default=0.0006, help="peak ...", bounds=above 0, ...)

    command line  "1e5"    -> parse_text -> 100000.0 --.
    TOML           100_000 -----------------------------> convert(value, spec) -> 100000, or Mistake("expected ...")

This line defines the option in recipe files, on the command line, in ``--help``, in range checks and in printed
recipes. Types are int, float, bool, str, ``Literal`` of strings, each of these ``| None``, and the lists
``tuple[str, ...]``, ``tuple[int, ...]`` and ``tuple[float, ...]``. Integers may be written as whole floats (``1e5``).
``none`` unsets an optional value and empties a list, in TOML as ``"none"``. A list is an array in TOML and ``a,b`` on
the command line; a single entry needs no brackets.
"""

import dataclasses
import functools
import json
import math
import os
import re
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints
from typing import runtime_checkable as checkable

from hornbook.errors import UserError

T = TypeVar("T")

LARGEST_INTEGER = 2**63 - 1
SHOWN_CHARACTERS = 60
"""Messages shorten values longer than this."""

TAGS = {"model": "family", "objective": "name", "optimizer": "name", "schedule": "name"}
"""The sections with several dataclasses, and the key that selects one."""
REQUIRED = {"model": ("vocab_size", "max_positions"), "optimizer": ("learning_rate", "clip_norm")}
"""Fields that every dataclass of a section must have, because hornbook reads them."""

_METADATA = "hornbook"
_LISTS = (tuple[str, ...], tuple[int, ...], tuple[float, ...])
_TYPES: dict[object, type] = {kind: kind for kind in (int, float, bool, str)} | dict.fromkeys(_LISTS, tuple)
_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
_TOML_WORDS = {bool: "a boolean", int: "an integer", float: "a float", str: "a string", dict: "a table"}
_NUMBER = re.compile(r"(?:(\d{1,3}(?:,\d{3})+)|(\d+(?:[.,]\d+)?)) ?([%kKmMbBgG]?)")
_SUFFIXES = {"": 1.0, "%": 0.01, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
_CHOICES: dict[str, dict[str, type]] = {section: {} for section in TAGS}


class Mistake(Exception):  # noqa: N818 - internal to config, which reports it as a Problem
    """A value is invalid for its option; the message says what was expected and what was found."""


class Problem(NamedTuple):
    """A mistake: the keys involved (``section.key``, or ``key`` within a section) and a message with the remedy."""

    keys: tuple[str, ...]
    message: str


@checkable
class Checked(Protocol):
    """A section whose options depend on each other."""

    def problems(self) -> list[Problem]:
        """Return conflicting options, options without effect, and mistakes in the entries of lists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnknownPart:
    """A custom objective, optimizer or schedule of a stored recipe that is not registered."""

    name: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The stored options, not validated."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """The range of a number; None: unbounded."""

    above: float | None = None
    minimum: float | None = None
    below: float | None = None
    maximum: float | None = None

    def broken_by(self, value: float) -> bool:
        """Return whether ``value`` is out of range."""
        return (
            (self.above is not None and value <= self.above)
            or (self.minimum is not None and value < self.minimum)
            or (self.below is not None and value >= self.below)
            or (self.maximum is not None and value > self.maximum)
        )

    @property
    def expected(self) -> str:
        """The range after "expected": ``1 or more``, ``more than 0 and at most 1``; empty if unbounded."""
        return self._in_words({"above": "more than {:g}", "minimum": "{:g} or more", "below": "less than {:g}"})

    def __str__(self) -> str:
        return self._in_words({"above": "above {:g}", "minimum": "at least {:g}", "below": "below {:g}"})

    def _in_words(self, words: dict[str, str]) -> str:
        words |= {"maximum": "at most {:g}"}
        given = {name: bound for name, bound in dataclasses.asdict(self).items() if bound is not None}
        return " and ".join(words[name].format(bound) for name, bound in given.items())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """The specification of an option, a field of a section's dataclass."""

    type: Any
    name: str = ""
    optional: bool = False
    choices: tuple[str, ...] = ()
    default: object = None
    help: str = ""
    bounds: Bounds = Bounds()
    path: bool = False
    named: bool = False
    entry: Any = str
    """Type of a list's entries."""

    @property
    def expected(self) -> str:
        """The type in words, for error messages: ``an integer``, ``one of "fp32", "bf16"``."""
        words = f"an array of {_WORDS[self.entry].split()[1]}s" if self.type is tuple else _WORDS[self.type]
        if self.choices:
            words = "one of " + ", ".join(f'"{choice}"' for choice in self.choices)
        return f'{words} or "none"' if self.optional else words


def option(
    default: T,
    *,
    help: str,  # noqa: A002 - argparse's name for it
    path: bool = False,
    named: bool = False,
    **bounds: float,
) -> T:
    """Declare a recipe option: a dataclass field with help and bounds.

    A subclass that changes only the default declares a plain field: ``beta2: float = 0.95``.

    Args:
        default: the value if neither the recipe nor the command line sets it.
        help: one line for ``--help``, with the unit if there is one.
        path: whether the value is a path, which is made absolute: in a file, it is relative to the recipe's folder, on
            the command line to the working directory.
        named: whether each entry of a list of paths is ``PATH`` or ``NAME=PATH``.
        bounds: ``above``, ``minimum``, ``below`` or ``maximum``, for the value or each entry of a list.
    """
    metadata = {"help": help, "bounds": Bounds(**bounds), "path": path, "named": named}
    field: Any = dataclasses.field(default=default, metadata={_METADATA: metadata})
    return field  # type: ignore[no-any-return]  # a Field here, a value of type T for users of the dataclass


_described: dict[type, dict[str, Spec]] = {}


def describe(section: type) -> dict[str, Spec]:
    """Return the options of a section's dataclass by name, in order, without fields that have a ``default_factory``.

    Raises UserError if a field has an unsupported type, or no default.
    """
    if section not in _described:
        hints = get_type_hints(section)
        options = [field for field in dataclasses.fields(section) if field.default_factory is dataclasses.MISSING]
        _described[section] = {field.name: _spec(section, field, hints[field.name]) for field in options}
    return _described[section]


def _spec(section: type, field: "dataclasses.Field[Any]", annotation: object) -> Spec:
    where = f"{section.__name__}.{field.name}"
    if field.default is dataclasses.MISSING:
        raise UserError(
            f"{where}: has no default; every recipe option needs one: {field.name}: ... = option(default, ...)"
        )
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    bare = [member for member in members if member is not type(None)]
    choices = get_args(bare[0]) if get_origin(bare[0]) is Literal else ()
    kind = str if choices else _TYPES.get(bare[0])
    if len(bare) != 1 or kind is None or not all(isinstance(choice, str) for choice in choices):
        raise UserError(
            f"{where}: type {annotation} is not supported; expected int, float, bool, str, Literal of strings, "
            "tuple[str, ...], tuple[int, ...], tuple[float, ...], or None"
        )
    declared = (getattr(base, "__dataclass_fields__", {}).get(field.name) for base in section.__mro__)
    metadata = [own.metadata[_METADATA] for own in declared if own and _METADATA in own.metadata]
    return Spec(
        name=field.name,
        type=kind,
        optional=len(members) > 1,
        choices=choices,
        default=field.default,
        entry=get_args(bare[0])[0] if kind is tuple else str,
        **(metadata[0] if metadata else {}),
    )


def register(section: str, tag: str, dataclass: type) -> None:
    """Register ``dataclass`` for sections whose tag is ``tag``; call it before a recipe is loaded.

    A class that is defined again, by a notebook's cell or a reloaded module, replaces the earlier definition.

    Args:
        section: ``model``, ``objective``, ``optimizer`` or ``schedule``.
        tag: the value of the section's ``family`` or ``name`` in a recipe.
        dataclass: frozen; the default of its tag field is ``tag``, and it has the fields of ``REQUIRED``. A method
            ``problems() -> list[Problem]`` may check several fields together.

    Raises:
        UserError: the section is unknown, the tag is taken, or the class is unsuitable.
    """
    if section not in TAGS:
        raise UserError(f'section "{section}" has no choices; expected one of {", ".join(TAGS)}')
    taken, key, name = _CHOICES[section].get(tag, dataclass), TAGS[section], dataclass.__name__
    if definition_of(taken) != definition_of(dataclass):
        raise UserError(f'{section}.{key} = "{tag}" is taken by {taken.__name__}; choose another')
    if not dataclasses.is_dataclass(dataclass) or not dataclass.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise UserError(f"{name}: expected a frozen dataclass, @dataclass(frozen=True, kw_only=True)")
    fields = describe(dataclass)
    if key not in fields or fields[key].default != tag:
        raise UserError(f'{name}: expected a field {key}: str = option("{tag}", help="...")')
    if missing := [field for field in REQUIRED.get(section, ()) if field not in fields]:
        raise UserError(f"{name}: expected the fields {', '.join(missing)}, which every {section} has")
    _CHOICES[section][tag] = dataclass


def choice_of(section: str) -> Callable[[type[T]], type[T]]:
    """Register the decorated dataclass as a choice of ``section``, under the default of its tag field."""

    def decorate(dataclass: type[T]) -> type[T]:
        register(section, getattr(dataclass, TAGS[section]), dataclass)
        return dataclass

    return decorate


def choices(section: str) -> dict[str, type]:
    """Return the dataclasses of a section by tag, in order of registration."""
    return dict(_CHOICES[section])


def definition_of(part: Any) -> tuple[str, str]:
    """Return the module and name of a class or function, which do not change when its definition is run again."""
    while isinstance(part, functools.partial):
        part = part.func
    return part.__module__, getattr(part, "__qualname__", type(part).__qualname__)


def script_of(part: type) -> str | None:
    """Return the path of the file that defines a custom class; None for hornbook's classes, and in a notebook."""
    module = sys.modules.get(part.__module__)
    file = getattr(module, "__file__", None)
    is_own = part.__module__.partition(".")[0] != __name__.partition(".")[0]
    return str(Path(file).absolute()) if is_own and file else None


def parse_text(text: object, spec: Spec) -> object:
    """Parse command-line text as its option's type; invalid text is returned unchanged, and ``convert`` rejects it.

    Raises Mistake if the text is None, unless the option is a boolean, for which that means true.
    """
    if not isinstance(text, str):
        if spec.type is bool:
            return True
        raise Mistake(f"expected {spec.expected} after the option")
    if text.lower() == "none" and (spec.optional or spec.type is tuple):
        return None
    if spec.type is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    return [_parse(part, spec.entry) for part in text.split(",")] if spec.type is tuple else _parse(text, spec.type)


def _parse(text: str, kind: type) -> object:
    for number in (kind, float) if kind in (int, float) else ():
        with suppress(ValueError):
            return number(text)
    return text


def convert(value: object, spec: Spec) -> object:
    """Validate ``value`` and return it as the option's type.

    Raises Mistake if it has the wrong type, is out of bounds, or is not one of the choices.
    """
    is_unset = value is None or (isinstance(value, str) and value == "none")
    if spec.type is not tuple or (is_unset and spec.optional):
        return None if is_unset and spec.optional else _scalar(value, spec)
    if isinstance(value, list | tuple):
        return tuple(_scalar(entry, spec, found="one with {} in it") for entry in value)
    return () if is_unset else (_scalar(value, spec),)


def _scalar(value: Any, spec: Spec, found: str = "{}") -> object:
    """Validate a scalar value or an entry of a list."""
    kind = spec.entry if spec.type is tuple else spec.type
    if kind in (int, float):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and isinstance(value, float) and not math.isfinite(value):
            raise Mistake("expected a finite number")
        if is_number and abs(value) > LARGEST_INTEGER and int in (type(value), kind):
            raise Mistake("expected an integer of at most 64 bits")
        if not is_number or (kind is int and value != int(value)):
            raise Mistake(f"expected {spec.expected}, got {found.format(kind_of(value))}{_number_meant(value)}")
        if spec.bounds.broken_by(value := kind(value)):
            raise Mistake(f"must be {spec.bounds}")
        return value
    if spec.choices and isinstance(value, str) and value not in spec.choices:
        raise Mistake(f"expected {spec.expected}")
    if not isinstance(value, kind):
        raise Mistake(f"expected {spec.expected}, got {found.format(kind_of(value))}")
    if value == "":
        raise Mistake("must not be empty")
    if isinstance(value, str) and ("\0" in value or value.encode(errors="ignore").decode() != value):
        raise Mistake("expected UTF-8 text without NUL characters")
    return value


def _number_meant(value: object) -> str:
    """Return the end of a message for a number with separators, a percent sign or a suffix, such as ``10M``."""
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return ""
    thousands, decimal, suffix = match.groups()
    number = float(thousands.replace(",", "") if thousands else decimal.replace(",", "."))
    return f"; did you mean {number * _SUFFIXES[suffix.lower()]:.15g}?"


def is_url(name: str) -> bool:
    """Return whether a name is a URL, as in ``"s3://bucket/corpora/mine"``, and not a path."""
    return "://" in name and name.partition("://")[0].isalnum()


def absolute(entry: str, folder: Path, *, named: bool = False) -> str:
    """Return the absolute path of ``entry``, with ``~`` expanded; a URL is returned unchanged.

    Args:
        entry: a path or, if ``named``, also ``NAME=PATH``; write a path with an equals sign as ``./a=b``.
        folder: the folder that relative paths refer to.
        named: whether ``entry`` may be ``NAME=PATH``.

    Raises:
        Mistake: the home folder is unknown.
    """
    name, path = split_entry(entry) if named else (None, entry)
    if is_url(path):
        return entry
    try:
        written = Path.home() / path[2:] if path == "~" or path.startswith("~/") else Path(path)
    except RuntimeError:
        raise Mistake("the home folder is unknown; write the path out") from None
    resolved = os.path.normpath(folder.absolute() / written)
    return resolved if name is None else f"{name}={resolved}"


def split_entry(entry: str) -> tuple[str | None, str]:
    """Return name and path of ``NAME=PATH``; the name is None if there is only a path."""
    named = re.fullmatch(r"(\w+)=(.+)", entry, re.DOTALL)
    return (named[1], named[2]) if named else (None, entry)


def kind_of(value: object) -> str:
    """Return the type of a TOML value in words."""
    if value is None or isinstance(value, list):
        return "none" if value is None else "an array"
    name = type(value).__name__
    return _TOML_WORDS.get(type(value), f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}")


def show(value: object, *, quote: bool = True) -> str:
    """Return a value as one short line, similar to TOML; with ``quote`` false, strings have no quotes."""
    if value is None or isinstance(value, list | dict):
        return {type(None): "none", list: "[...]"}.get(type(value), "{...}")
    if isinstance(value, tuple):
        text = f"[{', '.join(show(entry) for entry in value)}]"
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        text = f"an integer of {value.bit_length()} bits"
    else:
        is_json = isinstance(value, bool) or (quote and isinstance(value, str))
        text = json.dumps(value, ensure_ascii=False) if is_json else str(value)
        text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."
