"""The recipe as it was written: leaves of the file and of the command line in one tree, each with its source.

    [training]                       {("training", "steps"): Leaf(500, "my.toml:2")}          <- the file
    steps = 500                 +    {("training", "epochs"): Leaf("2", "command line", ...)} <- --training.epochs 2
                                =    {("training", "epochs"): Leaf("2", "command line, in place of training.steps ...")}

Nothing is checked here: an unknown key is a leaf like any other, so that ``build`` reports every mistake at once. The
TOML parser keeps no line numbers; they come from a scan of the text, which gives all keys of an inline table the line
of the table.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hornbook.config.options import TAGS, choices, describe, show
from hornbook.config.recipe import EXCLUSIVE, SECTIONS, specs
from hornbook.config.suggest import did_you_mean
from hornbook.errors import RecipeError

FOLDER = Path(__file__).parent / "recipes"
COMMAND_LINE = "command line"
LARGEST_FILE = 1 << 20
"""Maximum size of a recipe file in bytes."""
_TRAIN = "to train on it: hornbook train demo --data.train"
_OPTION = re.compile(r"--(?P<key>name|[\w-]+(?:\.[\w-]*)+)(?:=(?P<value>.*))?", re.DOTALL)

Key = tuple[str, str]


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


@dataclass(frozen=True, kw_only=True)
class BundledRecipe:
    """A recipe of the package: its name, the first comment line of its file, and the file."""

    name: str
    description: str
    path: Path


def dotted(key: Key) -> str:
    """Write a key as people do: ``training.steps``, or ``name`` at the top."""
    return f"{key[0]}.{key[1]}" if key[0] else key[1]


def bundled_recipes() -> dict[str, BundledRecipe]:
    """Return the recipes of the package by name, in alphabetical order."""
    found = {}
    for path in sorted(FOLDER.glob("*.toml")):
        with path.open(encoding="utf-8") as file:
            description = file.readline().lstrip("#").strip()
        found[path.stem] = BundledRecipe(name=path.stem, description=description, path=path)
    return found


def find_recipe(reference: str) -> Path:
    """Find a recipe: a bundled one by name, another by its path, which has a slash or ends in ``.toml``.

    Raises:
        RecipeError: neither; the message suggests the nearest names.
    """
    bundled = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
    if reference in bundled:
        return bundled[reference]
    path = Path(reference)
    if path.suffix == ".toml" or len(path.parts) > 1:
        return path
    family = [name for name in bundled if name.startswith(f"{reference}-")]
    family.sort(key=lambda name: (_size(bundled[name]), name))
    hint = f"; did you mean one of {', '.join(family)}?" if family else did_you_mean(reference, bundled)
    raise RecipeError([f"recipe {show(reference)}: no such bundled recipe{hint or '; `hornbook recipes` lists them'}"])


def _size(path: Path) -> tuple[int, int]:
    """Return width and depth of a recipe's model."""
    model = tomllib.loads(path.read_text(encoding="utf-8"))["model"]
    return model["hidden_size"], model["num_layers"]


def read_document(path: Path, label: str) -> tuple[dict[str, object], str]:
    """Read a recipe file, which messages call ``label``; return the parsed TOML and its text.

    Raises:
        RecipeError: the file cannot be read, is too large, or is not UTF-8 or not TOML (with line and column).
    """
    content = _read(path, label)
    try:
        text = content.decode("utf-8-sig")
        return tomllib.loads(text), text
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RecipeError([f"{label}:{line}: not UTF-8 at byte {error.start}; save the recipe as UTF-8"]) from None
    except RecursionError:
        raise RecipeError([f"{label}: not a recipe: tables or arrays are nested too deeply"]) from None
    except ValueError as error:  # TOMLDecodeError, or int() of thousands of digits
        message, _, position = str(error).partition(" (at line ")
        numbers = "".join(f":{number}" for number in re.findall(r"\d+", position))
        raise RecipeError([f"{label}{numbers}: not TOML: {' '.join(message.split())}"]) from None


def _read(path: Path, label: str) -> bytes:
    try:
        if path.is_dir():
            run = (path / "recipe.toml").is_file()
            hint = f"the recipe of the run there is {path / 'recipe.toml'}" if run else f"{_TRAIN} {path}"
            raise RecipeError([f"{label}: is a folder, not a recipe file; {hint}"])
        if not path.is_file():
            raise RecipeError([f"{label}: no such recipe file"])
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise RecipeError([f"{label}: cannot be read: {error.strerror or error}"]) from None
    if len(content) > LARGEST_FILE:
        raise RecipeError([f"{label}: larger than {LARGEST_FILE} bytes; is it a recipe?"])
    return content


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
    for key, value in _entries(document):
        number = lines.get(key) or lines.get(("", key[0]), 0)
        tree[key] = Leaf(value=value, source=f"{label}:{number}" if number else label, folder=folder)
    return tree


def document_leaves(document: Mapping[str, object], label: str) -> Tree:
    """Make leaves of a recipe that was stored as JSON; its paths are absolute already."""
    return {key: Leaf(value=value, source=label) for key, value in _entries(document)}


def _entries(document: Mapping[str, object]) -> Iterator[tuple[Key, object]]:
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


def override_leaves(values: Mapping[str, object]) -> Tree:
    """Make leaves of options by dotted name, as a Python program gives them: ``{"training.steps": 300}``.

    Dashes and underscores are the same. Values are typed as in a recipe file; a path may be a ``Path``, and None is
    ``"none"``.
    """
    tree: Tree = {}
    for name, value in values.items():
        section, _, key = name.replace("-", "_").rpartition(".")
        entries = [_as_text(entry) for entry in value] if isinstance(value, list | tuple) else _as_text(value)
        tree[section, key] = Leaf(value=entries, source="overrides", folder=Path.cwd())
    return tree


def _as_text(value: object) -> object:
    if value is None:
        return "none"
    return str(value) if isinstance(value, Path) else value


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
