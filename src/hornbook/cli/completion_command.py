"""``hornbook completion SHELL``: print a script for shell completion.

source <(hornbook completion bash)                                    in ~/.bashrc
hornbook completion fish > ~/.config/fish/completions/hornbook.fish

The script contains the words of all commands' parsers, so a completion does not start Python and takes no time. In
return, a script saved to a file is outdated after an update of hornbook.
"""

import argparse
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from hornbook.cli.arguments import CommandParser
from hornbook.cli.completion_scripts import SCRIPTS, Command, Value
from hornbook.cli.main import COMMANDS, build_parsers
from hornbook.config import bundled_recipes

_PATHS = re.compile(r"(NAME=)?(PATH|FILE|DIR|FOLDER|SOURCE)(,\.\.\.)?")
"""Metavariables of path arguments."""
_HELP_SENTENCE = re.compile(r"[;(].*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare SHELL."""
    parser.description = (
        "Print a script that completes commands, options, recipe names and paths.\n"
        "bash: source <(hornbook completion bash), in ~/.bashrc\n"
        "zsh: source <(hornbook completion zsh), in ~/.zshrc after compinit\n"
        "fish: hornbook completion fish > ~/.config/fish/completions/hornbook.fish"
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS), metavar="SHELL", help="bash, zsh or fish")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Print the script."""
    script = SCRIPTS[arguments.shell](list(_commands()))
    print(script, end="")
    return {"shell": arguments.shell, "script": script}


def _commands() -> Iterator[Command]:
    """Yield the commands with their completions, ``hornbook`` itself first."""
    parser, parsers = build_parsers()
    for name in COMMANDS:
        importlib.import_module(f"hornbook.cli.{name}_command").add_arguments(parsers[name])
    yield from _walk((), parser)


def _walk(words: tuple[str, ...], parser: CommandParser) -> Iterator[Command]:
    parser.declare()
    options: dict[str, Value] = {}
    positional = Value()
    subparsers: dict[str, CommandParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            subparsers = dict(action.choices)
        elif action.option_strings:
            options |= dict.fromkeys(action.option_strings, _value_of(action))
        else:
            positional = positional.joined(_value_of(action, positional=True))
    helps = {name: _one_sentence(own.description) for name, own in subparsers.items()}
    yield Command(words=words, subcommands=helps, options=options, positional=positional)
    for name, own in subparsers.items():
        yield from _walk((*words, name), own)


def _value_of(action: argparse.Action, *, positional: bool = False) -> Value:
    """Return the values of an argument; positional arguments without known values are paths."""
    told, metavar = _one_sentence(action.help), str(action.metavar or "")
    if action.dest == "recipe":
        return Value(help=told, words=tuple(bundled_recipes()), is_path=metavar == "RECIPE")
    words = tuple(map(str, action.choices)) if action.choices else ()
    if listed := re.fullmatch(r"\{(?P<words>.*)\}|\[(?P<truth>true\|false)\]", metavar):
        words = tuple(listed["words"].split(",") if listed["words"] else listed["truth"].split("|"))
    is_path = action.type is Path or bool(_PATHS.fullmatch(metavar)) or (positional and not words)
    return Value(help=told, words=words, is_path=is_path, is_flag=action.nargs == 0)


def _one_sentence(text: str | None) -> str:
    """Return the first sentence of a help text."""
    first = (text or "").partition("\n")[0]
    return _HELP_SENTENCE.sub("", first).strip().rstrip(".") if text != argparse.SUPPRESS else ""
