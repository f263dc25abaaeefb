"""What a recipe option is: a dataclass field that knows its help, its bounds and its type.

    learning_rate: float = option(6e-4, help="peak learning rate", above=0)

    describe(AdamWConfig)["learning_rate"]
        -> Spec(type=float, optional=False, choices=(), default=0.0006, help="peak ...", bounds=Bounds(above=0), ...)

Everything else follows from this one line: the reading of files, the reading of the command line, ``--help``, the
range checks and the printed recipe. The price is a small closed set of types: int, float, bool, str, ``Literal`` of
strings, each of these ``| None``, and lists: ``tuple[str, ...]`` and ``tuple[float, ...]``, empty where unset.
"""

import dataclasses
import functools
import types
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from hornbook.errors import UserError

T = TypeVar("T")
Kind: TypeAlias = type[Any]

_METADATA = "hornbook"
_TYPES = {int: int, float: float, bool: bool, str: str, tuple[str, ...]: tuple, tuple[float, ...]: tuple}
_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


class Problem(NamedTuple):
    """One mistake: the keys that it is about (``section.key``, or just ``key`` within a section) and what is wrong."""

    keys: tuple[str, ...]
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """The range of a number; None is no bound."""

    above: float | None = None
    minimum: float | None = None
    below: float | None = None
    maximum: float | None = None

    def broken_by(self, value: float) -> bool:
        """Tell whether ``value`` lies outside."""
        return (
            (self.above is not None and value <= self.above)
            or (self.minimum is not None and value < self.minimum)
            or (self.below is not None and value >= self.below)
            or (self.maximum is not None and value > self.maximum)
        )

    def __str__(self) -> str:
        words = {"above": "above", "minimum": "at least", "below": "below", "maximum": "at most"}
        given = [(words[name], bound) for name, bound in dataclasses.asdict(self).items() if bound is not None]
        return " and ".join(f"{word} {bound:g}" for word, bound in given)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """One option as the loader sees it: a field of a section's dataclass."""

    name: str
    type: type
    optional: bool
    choices: tuple[str, ...]
    default: object
    help: str
    bounds: Bounds
    path: bool
    named: bool = False
    entry: Kind = str
    """Type of a list's entries."""

    @property
    def scalar(self) -> Kind:
        """The type of the value, or of a list's entries."""
        return self.entry if self.type is tuple else self.type

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
    help: str,  # noqa: A002 - the word that argparse uses for it
    above: float | None = None,
    minimum: float | None = None,
    below: float | None = None,
    maximum: float | None = None,
    path: bool = False,
    named: bool = False,
) -> T:
    """Declare a recipe option: a dataclass field with help and bounds.

    Args:
        default: the value when neither recipe nor command line gives one.
        help: one line for ``--help``; name the unit where there is one.
        above: the value must be greater than this.
        minimum: the value must be at least this.
        below: the value must be less than this.
        maximum: the value must be at most this.
        path: the value is a path: relative to the recipe's folder in a file, to the working directory on the command
            line, absolute once loaded.
        named: each entry of a list of paths is ``PATH`` or ``NAME=PATH``.

    The bounds of a list are those of its entries.
    """
    bounds = Bounds(above=above, minimum=minimum, below=below, maximum=maximum)
    field: Any = dataclasses.field(
        default=default, metadata={_METADATA: {"help": help, "bounds": bounds, "path": path, "named": named}}
    )
    return field  # type: ignore[no-any-return]  # a Field at run time, the value's type for the dataclass's reader


def describe(section: type) -> dict[str, Spec]:
    """List the options of a section's dataclass, in order; a field with a ``default_factory`` is no option.

    Raises:
        UserError: a field has a type that a recipe cannot hold, or no default.
    """
    return _describe(section)


@functools.cache
def _describe(section: type) -> dict[str, Spec]:
    hints = get_type_hints(section)
    options = [field for field in dataclasses.fields(section) if field.default_factory is dataclasses.MISSING]
    return {field.name: _spec(section, field, hints[field.name]) for field in options}


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
            f"{where}: type {annotation} is no recipe type: int, float, bool, str, Literal of strings, "
            "tuple[str, ...], tuple[float, ...], or None"
        )
    metadata = field.metadata.get(_METADATA, {"help": "", "bounds": Bounds(), "path": False})
    optional = len(members) > 1
    entry = get_args(bare[0])[0] if kind is tuple else str
    return Spec(
        name=field.name,
        type=kind,
        optional=optional,
        choices=choices,
        default=field.default,
        entry=entry,
        **metadata,
    )
