"""Arguments that several commands share: numbers with bounds, the device, a recipe with its overrides.

    parser.add_argument("--output-length", type=positive_integer, ...)
    add_recipe_arguments(parser)      -> RECIPE and --section.key value: arguments.recipe, arguments.overrides
    add_device_arguments(parser)      -> --device, --threads: arguments.device, arguments.threads

Numbers are read by the recipe's own validator, so that ``1e5``, ``100_000`` and an error look the same everywhere.
"""

import argparse
from dataclasses import dataclass, replace
from typing import Any

from hornbook.cli.parser import CommandParser
from hornbook.config.options import TAGS, Bounds, Mistake, Spec, choices, convert, parse_text, show
from hornbook.config.recipe import SECTIONS, specs

DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True)
class Number:
    """Read a number within bounds, as argparse's ``type``."""

    spec: Spec

    def __call__(self, text: str) -> Any:
        """Return the number in ``text``; raise argparse.ArgumentTypeError if there is none, or one out of bounds."""
        try:
            return convert(parse_text(text, self.spec), self.spec)
        except Mistake as mistake:
            raise argparse.ArgumentTypeError(f"{show(text)}: {mistake}") from None


positive_integer = Number(Spec(type=int, bounds=Bounds(minimum=1)))
natural_number = Number(Spec(type=int, bounds=Bounds(minimum=0)))
positive_number = Number(Spec(type=float, bounds=Bounds(above=0)))
non_negative_number = Number(Spec(type=float, bounds=Bounds(minimum=0)))
fraction = Number(Spec(type=float, bounds=Bounds(minimum=0, maximum=1)))
positive_fraction = Number(Spec(type=float, bounds=Bounds(above=0, maximum=1)))


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--device`` and ``--threads``."""
    parser.add_argument(
        "--device", choices=DEVICES, default="auto", help="compute device; auto: the fastest available (default: auto)"
    )
    parser.add_argument(
        "--threads", type=positive_integer, metavar="N", help="CPU threads (default: one per physical core)"
    )


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare RECIPE and every ``--section.key``; they come out as ``arguments.recipe`` and ``arguments.overrides``."""
    assert isinstance(parser, CommandParser), "the dispatcher's parsers take recipe options out of the words"
    parser.takes_recipe = True
    parser.usage = f"{parser.prog} [options] RECIPE [--section.key VALUE ...]"
    parser.add_argument(
        "recipe", metavar="RECIPE", help="recipe file, or name of a bundled recipe (see `hornbook recipes`)"
    )
    parser.add_argument(
        "--name", metavar="TEXT", default=argparse.SUPPRESS, help="name of the run (default: the recipe's)"
    )
    for section in SECTIONS:
        _document(parser.add_argument_group(f"recipe, [{section}]"), section)


def _document(group: "argparse._ArgumentGroup", section: str) -> None:
    """List a section's options for ``--help``; their values never get here, since the recipe's validator takes them."""
    for name, owners in specs(section).items():
        spec = owners[0][1]
        is_tag = TAGS.get(section) == name
        metavar = f"{{{','.join(choices(section))}}}" if is_tag else _metavar(spec)
        only = [tag for tag, _ in owners] if len(owners) < len(choices(section) if section in TAGS else owners) else []
        owner = f"; only for {', '.join(only)}" if only else ""
        default = getattr(SECTIONS[section](), name, spec.default)
        others = [] if is_tag else [f"; {tag}: {_plain(own.default)}" for tag, own in owners if own.default != default]
        help_text = f"{spec.help} (default: {_plain(default)}{''.join(others)}{owner})".replace("%", "%%")
        flag = f"--{section}.{name.replace('_', '-')}"
        group.add_argument(flag, metavar=metavar, default=argparse.SUPPRESS, help=help_text)


def _metavar(spec: Spec) -> str:
    if spec.choices:
        return f"{{{','.join(spec.choices)}}}"
    if spec.type is bool:
        return "[true|false]"
    if spec.type is tuple:
        return f"{_metavar(replace(spec, type=spec.entry))},..."
    if spec.path:
        return "NAME=PATH" if spec.named else "PATH"
    return {int: "INTEGER", float: "NUMBER", str: "TEXT"}[spec.type]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else show(value)
