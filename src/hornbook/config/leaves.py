"""Unchecked values of a recipe with their sources: of a file, of the command line, one laid over the other.

    from = "gpt2-small"     {("training", "seed"): Leaf(1234, "gpt2-small:20"), ...}
    [training]              {("training", "steps"): Leaf(500, "my.toml:3")}
    steps = 500
    --training.epochs 2     {("training", "epochs"): Leaf("2", "command line")}

                         -> {("training", "seed"): Leaf(1234, "gpt2-small:20"), ...,
                             ("training", "epochs"): Leaf("2", "command line, in place of training.steps (my.toml:3)")}

The TOML parser keeps no line numbers; they come from a scan of the text, which gives all keys of an inline table the
line of the table.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hornbook.config.options import TAGS, Mistake, absolute, choices, describe, show
from hornbook.config.recipe import EXCLUSIVE, SECTIONS, Key, dotted, specs
from hornbook.config.recipe_files import find_recipe, read_document
from hornbook.errors import RecipeError

COMMAND_LINE = "command line"
_OPTION = re.compile(r"--(?P<key>name|[\w-]+(?:\.[\w-]*)+)(?:=(?P<value>.*))?", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """An unchecked value, with its source in words and the folder that paths are relative to.

    On the command line the value is text, or None for an option without a value.
    """

    value: object
    source: str
    folder: Path | None = None
    is_text: bool = False


Tree = dict[Key, Leaf]
START = ("", "from")
"""Key of a recipe file that names the recipe it starts from."""


def read_leaves(path: Path, name: str, above: tuple[Path, ...] = ()) -> Tree:
    """Read the leaves of a recipe file, laid over those of the recipe that it starts ``from``, except its name.

    Args:
        path: of the file.
        name: what messages call it.
        above: files that start from this one.

    Raises:
        RecipeError: a file cannot be read, ``from`` names no recipe, or recipes start from each other in a circle.
    """
    label = name if name.isprintable() else show(name)
    own = file_leaves(*read_document(path, label), label, path.parent)
    if START not in own:
        return own
    leaf = own.pop(START)
    said = f"from = {show(leaf.value)} ({leaf.source})"
    if not isinstance(leaf.value, str):
        raise RecipeError([f"{said}: expected the name of a bundled recipe, or the path of a recipe file"])
    is_path = "/" in leaf.value or leaf.value.endswith(".toml")
    try:
        start = find_recipe(absolute(leaf.value, path.parent) if is_path else leaf.value)
    except (Mistake, RecipeError) as error:
        raise RecipeError([f"{said}: {error}"]) from None
    files = (path.resolve(), *above)
    if start.resolve() in files:
        raise RecipeError([f"{said}: the recipe starts from itself; remove one `from`"])
    below = read_leaves(start, leaf.value, files)
    below.pop(("", "name"), None)
    return merge(below, own)


def file_leaves(document: Mapping[str, object], text: str, label: str, folder: Path) -> Tree:
    """Make leaves of a parsed recipe file; a table that is no section stays one leaf."""
    lines, section = {}, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([\w-]+)\s*\]", line):
            section = header[1]
            lines["", section] = number
        elif assignment := re.match(r"\s*([\w-]+)\s*(?:\.\s*([\w-]+)\s*)?=", line):
            first, second = assignment[1], assignment[2]
            lines[(section, first) if section or second is None else (first, second)] = number
    tree = {}
    for key, value in entries_of(document):
        number = lines.get(key) or lines.get(("", key[0]), 0)
        tree[key] = Leaf(value=value, source=f"{label}:{number}" if number else label, folder=folder)
    return tree


def entries_of(document: Mapping[str, object]) -> Iterator[tuple[Key, object]]:
    """Yield the keys of a parsed recipe with their values; a table that is no section is one value."""
    for name, value in document.items():
        if name in SECTIONS and isinstance(value, dict):
            yield from (((name, key), entry) for key, entry in value.items())
        else:
            yield ("", name), value


def split_overrides(words: Sequence[str]) -> tuple[Tree, list[str]]:
    """Take the recipe's options out of command-line words.

    A recipe option has a dot in it, or is ``--name``; dashes and underscores are the same. The next word is its value
    unless it starts with two dashes (``--section.key=--value`` works); for a boolean, only if it is ``true``, ``false``
    or ``none``. The last of several values counts, and nothing behind a bare ``--`` is an option.

    Returns:
        The leaves of the options, and the other words.
    """
    tree: Tree = {}
    rest: list[str] = []
    here, index = Path.cwd(), 0
    while index < len(words) and words[index] != "--":
        match = _OPTION.fullmatch(words[index])
        index += 1
        if match is None:
            rest.append(words[index - 1])
            continue
        section, _, name = match["key"].replace("-", "_").rpartition(".")
        value = match["value"]
        if value is None and index < len(words) and _is_value((section, name), words[index]):
            value = words[index]
            index += 1
        tree[section, name] = Leaf(value=value, source=COMMAND_LINE, folder=here, is_text=True)
    return tree, [*rest, *words[index:]]


def _is_value(key: Key, word: str) -> bool:
    owners = specs(key[0]).get(key[1], []) if key[0] in SECTIONS else []
    is_boolean = any(spec.type is bool for _, spec in owners)
    return word.lower() in ("true", "false", "none") if is_boolean else not word.startswith("--")


def merge(recipe: Tree, overrides: Tree) -> Tree:
    """Lay the command line over the recipe.

    An option that excludes others drops those of the recipe; a ``family`` or ``name`` drops the recipe's options that
    only other choices have.
    """
    merged = {**recipe, **overrides}
    for group in EXCLUSIVE:
        if given := [key for key in group if key in overrides and _is_set(overrides[key])]:
            _drop(merged, given[0], [key for key in group if key in recipe and key not in overrides])
    for section, tag in TAGS.items():
        leaf, known = overrides.get((section, tag)), choices(section)
        if leaf and isinstance(leaf.value, str) and leaf.value in known:
            others = specs(section).keys() - describe(known[leaf.value]).keys()
            own = [key for key in recipe if key[0] == section and key not in overrides]
            _drop(merged, (section, tag), [key for key in own if key[1] in others])
    return merged


def _is_set(leaf: Leaf) -> bool:
    return str(leaf.value).lower() not in ("none", "false") or leaf.value is None


def _drop(merged: Tree, chosen: Key, keys: list[Key]) -> None:
    """Remove the keys that are still there; the source of the chosen one names them."""
    dropped = {key: merged.pop(key) for key in keys if key in merged}
    if dropped:
        before = ", ".join(f"{dotted(key)} ({leaf.source})" for key, leaf in dropped.items())
        merged[chosen] = replace(merged[chosen], source=f"{merged[chosen].source}, in place of {before}")
