"""The recipe's options on a command line, told apart from the command's own words.

    ["gpt2-small", "--optimizer.learning-rate", "3e-4", "--data.synthetic", "--output", "runs/a"]
        -> overrides ["--optimizer.learning_rate=3e-4", "--data.synthetic"]
           rest      ["gpt2-small", "--output", "runs/a"]

A recipe option has a dot in it, or is ``--name``. Dashes and underscores are the same. It takes the next word as its
value, unless that starts with two dashes; a boolean only takes ``true``, ``false`` or ``none``. The price of never
guessing: a value that starts with two dashes must be written ``--section.key=--value``.
"""

import re
from collections.abc import Sequence

from hornbook.config.build import SECTIONS, specs
from hornbook.config.tree import Tree, override_leaves
from hornbook.config.values import show
from hornbook.errors import RecipeError

_OPTION = re.compile(r"--(?P<key>name|[\w-]+(?:\.[\w-]*)+)(?:=(?P<value>.*))?", re.DOTALL)


def split_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take the recipe options out of command-line words.

    Returns:
        The options, each as one word ``--key=value`` (``--key`` where no value was given), and the other words. What
        follows a bare ``--`` is no option.
    """
    overrides: list[str] = []
    rest: list[str] = []
    index = 0
    while index < len(words) and words[index] != "--":
        match = _OPTION.fullmatch(words[index])
        following = words[index + 1 : index + 2]
        if match is None:
            rest.append(words[index])
        else:
            key, value = match["key"].replace("-", "_"), match["value"]
            if value is None and following and _is_value(key, following[0]):
                value = following[0]
                index += 1
            overrides.append(f"--{key}" if value is None else f"--{key}={value}")
        index += 1
    return overrides, [*rest, *words[index:]]


def read_overrides(words: Sequence[str]) -> Tree:
    """Make leaves of command-line words that are all recipe options.

    Raises:
        RecipeError: a word is no recipe option.
    """
    overrides, rest = split_overrides(words)
    if rest:
        raise RecipeError([f"{show(rest[0])} (command line): expected a recipe option, --section.key value"])
    pairs = (word.removeprefix("--").partition("=") for word in overrides)
    return override_leaves([(key, value if equals else None) for key, equals, value in pairs])


def _is_value(key: str, word: str) -> bool:
    section, _, name = key.rpartition(".")
    options = specs(section).get(name, []) if section in SECTIONS else []
    is_boolean = any(spec.type is bool for _, spec in options)
    return word.lower() in ("true", "false", "none") if is_boolean else not word.startswith("--")
