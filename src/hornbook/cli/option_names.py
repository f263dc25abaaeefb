"""Spell the arguments that a message names as options of the running command.

    hornbook (Python)      `output_length=0` is ...; `data.train` names ...; read it with `format='text'`
    command line           --output-length 0 is ...; --data.train names ...; read it with --from text

Errors come from functions, whose callers know arguments and recipe keys, so messages name those, in backquotes, with
a value as Python writes it. Which option sets an argument is known to the command's parser only. A name that is no
option of the command, and other text in backquotes, stays as it is.
"""

import argparse
import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from hornbook.errors import HornbookError, RecipeError
from hornbook.wording import spelling

Flags = Mapping[str, argparse.Action]
"""The options of a command by the names of the arguments that they set."""

_NAMED = re.compile(r"`(?P<name>[a-z]\w*(?:\.\w+)?)(?:=(?P<value>[^`]+))?`")


def flags_of(actions: Iterable[argparse.Action]) -> Flags:
    """Return the options among a parser's actions, by the names of the arguments that they set."""
    return {action.dest.replace("-", "_"): action for action in actions if action.option_strings}


@contextmanager
def running(flags: Flags) -> Iterator[None]:
    """Spell messages (`hornbook.wording.spelled`), and those of the block's errors, for a command's options."""

    def spell(message: str) -> str:
        return _NAMED.sub(lambda match: _spell(match, flags.get(match["name"])), message)

    with spelling(spell):
        try:
            yield
        except HornbookError as error:
            if isinstance(error, RecipeError):
                error.problems = [spell(problem) for problem in error.problems]
            error.args = (spell(str(error)), *error.args[1:])
            raise


def _spell(match: re.Match[str], action: argparse.Action | None) -> str:
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
