"""``hornbook completion SHELL``: print a script for shell completion.

source <(hornbook completion bash)                                    in ~/.bashrc
hornbook completion fish > ~/.config/fish/completions/hornbook.fish

The script contains the words of all commands' parsers, so a completion does not start Python and takes no time. In
return, a script saved to a file is outdated after an update of hornbook.

bash and zsh share the tables, two ``case`` statements, and have different functions. A function finds the command
(``train``, ``corpus build``) in the words before the cursor, and completes a value for the preceding option.
"""

import argparse
import importlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hornbook.cli.arguments import CommandParser
from hornbook.cli.main import COMMANDS, build_parsers
from hornbook.config import bundled_recipes

_PATHS = re.compile(r"(NAME=)?(PATH|FILE|DIR|FOLDER|SOURCE)(,\.\.\.)?")
"""Metavariables of path arguments."""
_HELP_SENTENCE = re.compile(r"[;(].*")
_BASH = """\
_hornbook() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" word at=''
    local subs opts paths texts args files choices show=''
    if [[ $cur == '=' ]]; then
        cur=''
    elif [[ $prev == '=' ]]; then
        prev="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    _hornbook_command ''
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        if [[ $word != -* && " $subs " == *" $word "* ]]; then
            at="${at:+$at }$word"
            _hornbook_command "$at"
        fi
    done
    _hornbook_choices "$at $prev"
    COMPREPLY=()
    if [[ $cur == -* ]]; then
        choices=$opts
    elif [[ -z $choices && " $paths " == *" $prev "* ]]; then
        show=files
    elif [[ -z $choices && " $texts " != *" $prev "* ]]; then
        choices="$subs $args" show=$files
    fi
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(compgen -W "$choices" -- "$cur"; [[ -z $show ]] || compgen -f -- "$cur")
    [[ -z $show ]] || compopt -o filenames 2> /dev/null
}

complete -F _hornbook hornbook
"""
_ZSH = """\
_hornbook() {
    local cur="${words[CURRENT]}" prev="${words[CURRENT-1]}" word at=''
    local subs opts paths texts args files choices show=''
    _hornbook_command ''
    for word in ${words[2,CURRENT-1]}; do
        if [[ $word != -* && " $subs " == *" $word "* ]]; then
            at="${at:+$at }$word"
            _hornbook_command "$at"
        fi
    done
    if [[ $cur == --*=* ]]; then
        prev="${cur%%=*}" cur="${cur#*=}"
        compset -P '*='
    fi
    _hornbook_choices "$at $prev"
    if [[ $cur == -* ]]; then
        choices=$opts
    elif [[ -z $choices && " $paths " == *" $prev "* ]]; then
        show=files
    elif [[ -z $choices && " $texts " != *" $prev "* ]]; then
        choices="$subs $args" show=$files
    fi
    compadd -- ${=choices}
    [[ -z $show ]] || _files
}

if [[ ${funcstack[1]} == _hornbook ]]; then
    _hornbook "$@"
else
    compdef _hornbook hornbook
fi
"""
_FISH = """\
function __hornbook_words
    for word in (commandline -opc)[2..]
        string match -q -- '-*' $word; or echo $word
    end
end

function __hornbook_at
    set -l typed (__hornbook_words)
    test (count $typed) -ge (count $argv); or return 1
    test (count $argv) -eq 0; or test "$typed[1..$(count $argv)]" = "$argv"
end

function __hornbook_is
    test "$(__hornbook_words)" = "$argv"
end

complete -c hornbook -f
"""


@dataclass(frozen=True, kw_only=True)
class Value:
    """The values of an argument: some words, a path, both, none (a flag), or any text."""

    help: str = ""
    words: tuple[str, ...] = ()
    is_path: bool = False
    is_flag: bool = False

    def joined(self, other: "Value") -> "Value":
        """Return the union of two values, for several positional arguments."""
        return Value(words=(*self.words, *other.words), is_path=self.is_path or other.is_path)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command and its completions."""

    words: tuple[str, ...]
    """The command itself: ``("corpus", "build")``; empty for ``hornbook``."""
    subcommands: dict[str, str] = field(default_factory=dict)
    """Help text of each subcommand."""
    options: dict[str, Value] = field(default_factory=dict)
    positional: Value = Value()


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
    parser, parsers = build_parsers()
    for name in COMMANDS:
        importlib.import_module(f"hornbook.cli.{name}_command").add_arguments(parsers[name])
    script = SCRIPTS[arguments.shell](list(_walk((), parser)))
    print(script, end="")
    return {"shell": arguments.shell, "script": script}


def _walk(words: tuple[str, ...], parser: CommandParser) -> Iterator[Command]:
    """Yield a command with its completions, then its subcommands."""
    parser.declare()
    parser.describe()
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
    help_text, metavar = _one_sentence(action.help), str(action.metavar or "")
    if action.dest == "recipe":
        return Value(help=help_text, words=tuple(bundled_recipes()), is_path=metavar == "RECIPE")
    words = tuple(map(str, action.choices)) if action.choices else ()
    if listed := re.fullmatch(r"\{(?P<words>.*)\}|\[(?P<truth>true\|false)\]", metavar):
        words = tuple(listed["words"].split(",") if listed["words"] else listed["truth"].split("|"))
    is_path = action.type is Path or bool(_PATHS.fullmatch(metavar)) or (positional and not words)
    return Value(help=help_text, words=words, is_path=is_path, is_flag=action.nargs == 0)


def _one_sentence(text: str | None) -> str:
    """Return the first sentence of a help text."""
    first = (text or "").partition("\n")[0]
    return _HELP_SENTENCE.sub("", first).strip().rstrip(".") if text != argparse.SUPPRESS else ""


def bash_script(commands: Sequence[Command]) -> str:
    """Return the script for bash 3.2 and later."""
    return f"# completes hornbook in bash: source this file in ~/.bashrc\n\n{_tables(commands)}\n{_BASH}"


def zsh_script(commands: Sequence[Command]) -> str:
    """Return the script for zsh, to be sourced after compinit or saved in ``fpath`` as ``_hornbook``."""
    head = "#compdef hornbook\n# completes hornbook in zsh: source this file after compinit"
    return f"{head}\n\n{_tables(commands)}\n{_ZSH}"


def fish_script(commands: Sequence[Command]) -> str:
    """Return the script for fish 3.4 and later, with a description of each word."""
    lines = [line for command in commands for line in _fish_lines(command)]
    return f"# completes hornbook in fish\n\n{_FISH}" + "".join(f"{line}\n" for line in lines)


SCRIPTS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
"""The script of each shell."""


def _tables(commands: Sequence[Command]) -> str:
    """Return two shell functions that set the words of a command and the choices of an option."""
    cases, choices = [], []
    for command in commands:
        name, options = " ".join(command.words), command.options
        with_value = {option: value for option, value in options.items() if not (value.is_flag or value.words)}
        assigned: dict[str, Iterable[str]] = {
            "subs": command.subcommands,
            "opts": options,
            "paths": [option for option, value in with_value.items() if value.is_path],
            "texts": [option for option, value in with_value.items() if not value.is_path],
            "args": command.positional.words,
            "files": ["files"] if command.positional.is_path else [],
        }
        body = "; ".join(f"{variable}={_quoted(words)}" for variable, words in assigned.items())
        cases.append(f"    {shlex.quote(name)}) {body} ;;\n")
        choices += [
            f"    {shlex.quote(f'{name} {option}')}) choices={_quoted(value.words)} ;;\n"
            for option, value in options.items()
            if value.words
        ]
    return (
        f'_hornbook_command() {{\n    case "$1" in\n{"".join(cases)}    esac\n}}\n\n'
        f"_hornbook_choices() {{\n    choices=''\n    case \"$1\" in\n{''.join(choices)}    esac\n}}\n"
    )


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


def _fish_lines(command: Command) -> list[str]:
    name = " ".join(command.words)
    at, exactly = (f"complete -c hornbook -n {shlex.quote(f'__hornbook_{how} {name}'.strip())}" for how in ("at", "is"))
    lines = [f"{exactly} -a {word} -d {_fish_quoted(help_text)}" for word, help_text in command.subcommands.items()]
    for option, value in command.options.items():
        kind = "-l" if option.startswith("--") else "-s"
        takes = "" if value.is_flag else f" -x -a {_quoted(value.words)}" if value.words else " -x"
        takes = " -r -F" if value.is_path else takes
        lines.append(f"{at} {kind} {option.lstrip('-')}{takes} -d {_fish_quoted(value.help)}")
    if command.positional.words:
        lines.append(f"{at} -a {_quoted(command.positional.words)}")
    if command.positional.is_path:
        lines.append(f"{at} -F")
    return lines


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
