"""The argument parser of all commands, and shared arguments.

    hornbook train demo --outptu runs/a
        -> UserError("unknown option --outptu; did you mean "--output"? (see `hornbook train --help`)")

    parser.add_argument("--output-length", type=positive_integer, ...)
    add_recipe_arguments(parser)      -> RECIPE and --section.key value: arguments.recipe, arguments.overrides
    add_device_arguments(parser)      -> --device, --threads: arguments.device, arguments.threads

An error is one line that suggests the most similar word. Numbers are read by the recipe's validator, so that ``1e5``,
``100_000`` and error messages are the same everywhere. Some private methods of argparse are overridden
(``_check_value``, ``_fill_text`` and ``_split_lines``, unchanged since Python 2.7).
"""

import argparse
import functools
import importlib
import itertools
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn, get_args

from hornbook.cli.table import wrap_line
from hornbook.config.options import TAGS, Bounds, Mistake, Spec, choices, convert, describe, parse_text, show
from hornbook.config.recipe import SECTIONS, Recipe, dotted, specs
from hornbook.config.recipe_files import SHORT, split_overrides
from hornbook.config.sections import Compute
from hornbook.config.suggest import did_you_mean, nearest
from hornbook.errors import UserError
from hornbook.parallel import launched
from hornbook.storage.system import MOST_THREADS_PER_CORE, usable_cores

if TYPE_CHECKING:
    from hornbook.config import Recipe
    from hornbook.parallel.world import World

DEVICES = ("auto", "cpu", "cuda", "mps")
_UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
COMPUTE: Final[tuple[str, ...]] = get_args(Compute)
TOKENIZER_HELP = (
    "tokenizer.json or vocab.txt, a folder with one, a corpus or a run; gpt2; or OWNER/NAME of the Hugging Face hub"
)


class _Formatter(argparse.HelpFormatter):
    """A help formatter that adds defaults, keeps the lines of descriptions, and never breaks at hyphens."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        values = action.default if isinstance(action.default, list) else [action.default]
        is_shown = (
            action.default and action.default != argparse.SUPPRESS and action.option_strings and action.nargs != 0
        )
        if not is_shown or "(default" in (action.help or ""):
            return action.help
        return f"{action.help} (default: {' '.join(show(value, quote=False) for value in values)})".replace("%", "%%")

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        is_count = isinstance(action.type, Number) and action.type.spec.type is int
        return "N" if is_count else super()._get_default_metavar_for_optional(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(wrap_line(f"{indent}{line}", width + len(indent)) for line in text.splitlines())

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class _Help(argparse.Action):
    """``--help [SECTION|all]``: the options of a recipe's section, or of all sections, are described on request."""

    def __call__(self, parser: Any, namespace: object, values: object, option_string: str | None = None) -> None:
        """Print the help and exit."""
        parser.declare()
        parser.describe()
        folded = {name: group for name, group in parser.sections.items() if values not in (name, "all")}
        if folded and values not in parser.sections:
            lines = ["recipe options, --SECTION.KEY VALUE; `--help SECTION` or `--help all` describes them:"]
            for name, group in folded.items():
                keys = [action.dest.partition(".")[2].replace("_", "-") for action in group._group_actions]
                lines.append(f"  {name:<12}{', '.join(keys)}")
            parser.epilog = "\n".join(lines)
        for action in itertools.chain.from_iterable(group._group_actions for group in folded.values()):
            action.help = argparse.SUPPRESS
        parser.print_help()
        parser.exit()


class CommandParser(argparse.ArgumentParser):
    """A parser with ``--json`` and ``--debug``, for commands and subcommands.

    Attributes:
        takes_recipe: whether words such as ``--optimizer.learning-rate`` become ``arguments.overrides``.
        module: if given, its ``add_arguments`` declares the arguments when the parser is first used, so that only the
            module of the selected subcommand is imported.
        taken: short names of recipe options that have another meaning in this command.
        sections: the options of a recipe by section, which ``--help`` lists by name only.
    """

    takes_recipe = False
    module: str | None = None

    def __init__(self, **options: Any) -> None:
        formatter = functools.partial(_Formatter, max_help_position=36)
        super().__init__(**options, allow_abbrev=False, add_help=False, formatter_class=formatter)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # argparse takes only plain ones for values, not -3m
        self.taken: set[str] = set()
        self.sections: dict[str, argparse._ArgumentGroup] = {}
        self.add_argument("-h", "--help", action=_Help, nargs=0, help="show this help message and exit")
        self.add_argument(
            "--json",
            action="store_true",
            default=argparse.SUPPRESS,
            help="print one JSON object as the last line on standard output",
        )
        self.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )

    def declare(self) -> None:
        """Declare the arguments of ``module``, if it is set, on the first call."""
        if self.module is not None:
            importlib.import_module(self.module).add_arguments(self)
            self.module = None

    def describe(self) -> None:
        """Give the options of a recipe their help and metavariables: 10 ms, which only ``--help`` and scripts need."""
        for section, group in self.sections.items():
            for action, (name, owners) in zip(group._group_actions, specs(section).items(), strict=True):
                spec, is_tag = owners[0][1], TAGS.get(section) == name
                action.metavar = f"{{{','.join(choices(section))}}}" if is_tag else _metavar(spec)
                is_of_some = len(owners) < len(choices(section) if section in TAGS else owners)
                owner = f"; only for {', '.join(tag for tag, _ in owners)}" if is_of_some else ""
                default = getattr(SECTIONS[section](), name, spec.default)
                differing = [(tag, own.default) for tag, own in owners if not is_tag and own.default != default]
                others = "".join(f"; {tag}: {show(value, quote=False)}" for tag, value in differing)
                text = f"{spec.help} (default: {show(default, quote=False)}{others}{owner})"
                action.help = text.replace("%", "%%")
        for short, (section, name) in SHORT.items() if self.takes_recipe else ():
            if short not in self.taken:
                action = self._option_string_actions[f"--{short}"]
                spec = specs(section)[name][0][1] if section else describe(Recipe)[name]
                action.help, action.metavar = spec.help, _metavar(spec)
                if section:
                    action.help += f" (--{section}.{name.replace('_', '-')})"

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse ``args``; raise UserError for unknown words here, where the command's options are known."""
        self.declare()
        given = sys.argv[1:] if args is None else list(args)
        is_empty = "--output=" in given or ("--output", "") in itertools.pairwise(given)
        if is_empty and "--output" in self._option_string_actions:
            self.error("argument --output: must not be empty; `.` is the working directory")
        overrides, words = split_overrides(given, self.taken) if self.takes_recipe else ({}, given)
        namespace, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(self._unknown(unknown[0], given))
        if self.takes_recipe:
            namespace.overrides = overrides
        vars(namespace).setdefault("actions", self._actions)  # of the innermost parser
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        """Raise UserError instead of printing the message and exiting."""
        raise UserError(f"{' '.join(message.split())} (see `{self.prog} --help`)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            expected = ", ".join(known)
            raise argparse.ArgumentError(
                action, f"{show(value)} is not one of {expected}{did_you_mean(str(value), known)}"
            )

    def _unknown(self, word: str, given: Sequence[str]) -> str:
        if not word.startswith("-"):
            for before, after in itertools.pairwise(given) if self.takes_recipe else ():
                options, _ = split_overrides([before], self.taken)
                if after == word and any(leaf.value is None for leaf in options.values()):  # any but a boolean takes it
                    return f"{before}: expected true or false, got {show(word)}"
            return f"unexpected argument {show(word)}"
        option = word.partition("=")[0]
        advice = did_you_mean(option, self._option_string_actions)
        if self.takes_recipe and ("auto" in given or not advice):
            from hornbook.plan.dial import DIALS

            dial = nearest(option, [f"--{name}" for name in DIALS])
            if dial and dial not in self._option_string_actions:
                advice = f"; {dial} is a dial of `hornbook train auto`, whose --print-recipe prints a recipe for this"
        return f"unknown option {show(option)}{advice}"


@dataclass(frozen=True)
class Number:
    """An argparse ``type`` that reads a number within bounds."""

    spec: Spec

    def __call__(self, text: str) -> Any:
        """Return the number in ``text``; raise argparse.ArgumentTypeError if it is invalid or out of bounds."""
        try:
            return convert(parse_text(text, self.spec), self.spec)
        except Mistake as mistake:
            raise argparse.ArgumentTypeError(f"{show(text)}: {mistake}") from None


positive_integer = Number(Spec(type=int, bounds=Bounds(minimum=1)))
natural_number = Number(Spec(type=int, bounds=Bounds(minimum=0)))
thread_count = Number(Spec(type=int, bounds=Bounds(minimum=1, maximum=MOST_THREADS_PER_CORE * usable_cores())))
positive_number = Number(Spec(type=float, bounds=Bounds(above=0)))
fraction = Number(Spec(type=float, bounds=Bounds(minimum=0, maximum=1)))
tail_fraction = Number(Spec(type=float, bounds=Bounds(minimum=0, maximum=0.25)))
positive_fraction = Number(Spec(type=float, bounds=Bounds(above=0, maximum=1)))


def add_declared(
    group: "argparse._ActionsContainer",
    section: type,
    name: str,
    *,
    flag: str | None = None,
    note: str = "",
    **more: Any,
) -> None:
    """Declare the option of a field of a dataclass (`hornbook.config.option`), with its help, type, bounds and default.

    The namespace has only the options that were given, so that a command can tell. A list is an option that is
    repeated, and its default is the dataclass's.

    Args:
        group: of the command's parser.
        section: the dataclass.
        name: of the field.
        flag: the option's name, if it is not the field's.
        note: addition to the help.
        more: keyword arguments of ``add_argument``, such as ``metavar``.
    """
    spec = describe(section)[name]
    is_off = spec.default is None or spec.default is False or spec.default == ()
    default = "" if is_off or "(default" in spec.help else f" (default: {show(spec.default, quote=False)})"
    kind: dict[str, Any] = {"choices": spec.choices or None}
    if spec.type is bool:
        kind = {"action": "store_true" if spec.default is False else argparse.BooleanOptionalAction}
    elif spec.type is tuple:
        kind = {"action": "append"}
    elif spec.type in (int, float):
        kind["type"] = Number(spec)
    flag = flag or f"--{name.replace('_', '-')}"
    group.add_argument(flag, dest=name, default=argparse.SUPPRESS, help=f"{spec.help}{default}{note}", **kind | more)


def declared_values(arguments: argparse.Namespace, section: type) -> dict[str, Any]:
    """Return the options of a dataclass that were given, by field; repeated ones as a tuple."""
    given = {name: getattr(arguments, name) for name in describe(section) if name in arguments}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def read_size(option: str, text: str) -> float:
    """Return the size in bytes of an option's text such as ``80GiB``, ``24 GB`` or ``1.5TiB``.

    Raises:
        UserError: the text is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    size = float(match[1]) * _UNITS.get(match[2].upper(), 0) if match else 0.0
    if size <= 0:
        raise UserError(f"{option} {text}: expected a size such as 80GiB or 24GB")
    return size


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--device`` and ``--threads``."""
    parser.add_argument("--device", choices=DEVICES, default="auto", help="compute device; auto: the fastest available")
    parser.add_argument(
        "--threads",
        type=thread_count,
        help="CPU threads (default: OMP_NUM_THREADS if set, else one per physical core)",
    )


def add_process_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--processes`` and ``--max-restarts``."""
    parser.add_argument("--processes", type=positive_integer, help="start N ranks on this machine, as torchrun would")
    parser.add_argument(
        "--max-restarts",
        type=natural_number,
        help="with --processes: resume up to N times after a rank was lost or failed with exit code 1 (default: 0)",
    )


def start_processes(arguments: argparse.Namespace, recipe: "Recipe") -> None:
    """Run the command on ``--processes`` ranks and exit with their exit code; return if the option is not given.

    Raises:
        UserError: ``--max-restarts`` without ``--processes``, either of them under ``torchrun``, more ranks than this
            machine could run, or the recipe cannot run on this number of ranks.
        SystemExit: the ranks have ended and printed their messages.
    """
    if arguments.processes is None:
        if arguments.max_restarts is not None:
            raise UserError("--max-restarts applies only with --processes; add --processes or remove it")
        return
    if launched.is_rank():
        raise UserError("--processes starts the ranks itself: remove it, or start hornbook without torchrun")
    most = MOST_THREADS_PER_CORE * usable_cores()  # a plan or a benchmark for other machines may have more
    if arguments.processes > most:
        given = f"{arguments.processes:,}"
        raise UserError(f"--processes is {given}: start at most {most} here, {MOST_THREADS_PER_CORE} for each core")
    from hornbook.config.build import refuse_misfit

    refuse_misfit(recipe, arguments.processes)
    from hornbook.run.processes import run_ranks, without  # imports torch

    words = without(arguments.words, "--processes", "--max-restarts")
    restarts = arguments.max_restarts or 0
    raise SystemExit(run_ranks(words, arguments.processes, device=arguments.device, max_restarts=restarts))


def join_ranks(arguments: argparse.Namespace, recipe: "Recipe") -> "World":
    """Return the ranks of this command, each on its device; only the first one reports that they do not fit the recipe.

    Raises UserError in that case.
    """
    from hornbook.config import recipe_to_dict
    from hornbook.config.build import refuse_misfit
    from hornbook.parallel.device import prepare
    from hornbook.parallel.world import World

    with launched.report_once():
        device = prepare(arguments.device, arguments.threads)
        refuse_misfit(recipe, launched.num_ranks())
        return World.join(device, recipe.parallel, recipe_to_dict(recipe))


def add_recipe_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declare RECIPE and every ``--section.key``, parsed to ``arguments.recipe`` and ``arguments.overrides``.

    Args:
        parser: of a command.
        required: whether RECIPE is required; ``arguments.recipe`` is None without it.
    """
    assert isinstance(parser, CommandParser), "only CommandParser extracts recipe options"
    parser.takes_recipe = True
    parser.usage = f"{parser.prog} [options] {'RECIPE' if required else '[RECIPE]'} [--section.key VALUE ...]"
    shown = parser._option_string_actions["--help"]
    shown.nargs, shown.metavar = "?", "SECTION"
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        nargs=None if required else "?",
        help="recipe file, name of a bundled recipe (see `hornbook recipes`), or folder of a run",
    )
    parser.taken = {name for name in SHORT if f"--{name}" in parser._option_string_actions}
    frequent = parser.add_argument_group("frequent recipe options")
    parser._action_groups.insert(1, parser._action_groups.pop())  # the first group of the help
    for short, key in SHORT.items():
        if short not in parser.taken:
            frequent.add_argument(f"--{short}", dest=dotted(key), default=argparse.SUPPRESS)
    for section in SECTIONS:
        group = parser.sections[section] = parser.add_argument_group(f"recipe, [{section}]")
        for name in specs(section):
            flag = f"--{section}.{name.replace('_', '-')}"
            group.add_argument(flag, dest=f"{section}.{name}", default=argparse.SUPPRESS)


def with_some_vocabulary(recipe: "Recipe") -> "Recipe":
    """Return ``recipe``, to be used with random tokens, with a vocabulary of 4,096 if it sets none."""
    return replace(recipe, model=replace(recipe.model, vocab_size=recipe.model.vocab_size or 4096))


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
