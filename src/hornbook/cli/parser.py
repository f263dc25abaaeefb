"""The argument parser of every command: argparse, whose mistakes are one line and name the nearest word.

    hornbook train demo --outptu runs/a
        -> UserError("unknown option --outptu; did you mean "--output"? (see `hornbook train --help`)")

A parser that ``takes_recipe`` leaves words like ``--optimizer.learning-rate 3e-4`` to the recipe's validator: they come
out as ``arguments.overrides``, parsed but not checked. Some private methods of argparse are overridden
(``_check_value``, ``_fill_text`` and ``_split_lines``, unchanged since Python 2.7).
"""

import argparse
import functools
import importlib
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from hornbook.cli.table import wrap_line
from hornbook.config.document import split_overrides
from hornbook.config.options import show
from hornbook.config.suggest import did_you_mean
from hornbook.errors import UserError


class _Formatter(argparse.HelpFormatter):
    """Keeps the lines of a description, and wraps each below its own text; never at the hyphen of a name."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(wrap_line(f"{indent}{line}", width + len(indent)) for line in text.splitlines())

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class CommandParser(argparse.ArgumentParser):
    """A parser with ``--json`` and ``--debug``; subparsers are of this class too.

    Attributes:
        takes_recipe: whether words such as ``--optimizer.learning-rate`` become ``arguments.overrides``.
        module: if given, its ``add_arguments`` declares the arguments when the parser is first used, so that only the
            module of the chosen subcommand is imported.
    """

    takes_recipe = False
    module: str | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(
            **options, allow_abbrev=False, formatter_class=functools.partial(_Formatter, max_help_position=36)
        )
        self.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="end with one JSON object on standard output"
        )
        self.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )

    def declare(self) -> None:
        """Declare the arguments of ``module``, unless that is done or there is none."""
        if self.module is not None:
            importlib.import_module(self.module).add_arguments(self)
            self.module = None

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse; an unknown word is an error here, where the command's options are known.

        Raises:
            UserError: whatever is wrong with the words, in one line.
        """
        self.declare()
        words = sys.argv[1:] if args is None else list(args)
        overrides, words = split_overrides(words) if self.takes_recipe else ({}, words)
        namespace, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(self._unknown(unknown[0]))
        if self.takes_recipe:
            namespace.overrides = overrides
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print and exit for.

        Raises:
            UserError: always.
        """
        raise UserError(f"{' '.join(message.split())} (see `{self.prog} --help`)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            expected = ", ".join(known)
            raise argparse.ArgumentError(
                action, f"{show(value)} is not one of {expected}{did_you_mean(str(value), known)}"
            )

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"unexpected argument {show(word)}"
        option = word.partition("=")[0]
        return f"unknown option {show(option)}{did_you_mean(option, self._option_string_actions)}"
