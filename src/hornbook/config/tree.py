"""What was written, where: leaves of the recipe file and of the command line, merged into one tree.

    [training]                       {("training", "steps"): Leaf(500, "my.toml:2")}          <- the file
    steps = 500                 +    {("training", "epochs"): Leaf("2", "command line", ...)} <- --training.epochs 2
                                =    {("training", "epochs"): Leaf("2", "command line, in place of training.steps ...")}

Nothing is checked here: an unknown key is a leaf like any other, so that the validator sees every mistake at once and
can say where it stands. The price: line numbers come from a small scan beside the TOML parser (which keeps none), so an
inline table's keys are all said to stand on the line of the table.
"""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hornbook.config.options import describe
from hornbook.config.registry import TAGS, choices
from hornbook.errors import RecipeError

COMMAND_LINE = "command line"
LARGEST_FILE = 1 << 20
"""Bytes of a recipe file, at most; a recipe has a few thousand."""

EXCLUSIVE = (
    (("training", "steps"), ("training", "epochs"), ("training", "tokens")),
    (("data", "train"), ("data", "synthetic")),
    (("schedule", "warmup_steps"), ("schedule", "warmup_fraction")),
    (("schedule", "decay_steps"), ("schedule", "decay_end")),
    (("precision", "loss_scale"), ("precision", "loss_scale_by_step")),
)
"""Of these options one is set; choosing one on the command line takes the place of the recipe's choice."""

Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A value as it was written: not checked, with its source in words and the folder that paths are relative to.

    Text is what a command line gives, to be read as its option's type; None is an option without a value there.
    """

    value: object
    source: str
    folder: Path | None = None
    is_text: bool = False


Tree = dict[Key, Leaf]


def dotted(key: Key) -> str:
    """Write a key as people do: ``training.steps``, or ``name`` at the top."""
    return f"{key[0]}.{key[1]}" if key[0] else key[1]


def read_document(path: Path, label: str) -> tuple[dict[str, object], str]:
    """Read a recipe file.

    Args:
        path: the file.
        label: what messages call it.

    Returns:
        The parsed TOML and its text.

    Raises:
        RecipeError: the file cannot be read, is too large, or is not UTF-8 or not TOML (with line and column).
    """
    text = _read_text(path, label)
    try:
        return tomllib.loads(text), text
    except RecursionError:
        raise RecipeError([f"{label}: not a recipe: tables or arrays are nested too deeply"]) from None
    except ValueError as error:  # TOMLDecodeError, and what int() says to thousands of digits
        raise RecipeError([_syntax_message(str(error), label)]) from None


def file_leaves(document: Mapping[str, object], text: str, label: str, folder: Path, sections: Collection[str]) -> Tree:
    """Make leaves of a parsed recipe; a table that is no section stays one leaf."""
    lines = dict(_locate(text))
    tree = {}
    for key, value in _entries(document, sections):
        line = lines.get(key) or lines.get(("", key[0]))
        tree[key] = Leaf(value=value, source=f"{label}:{line}" if line else label, folder=folder)
    return tree


def document_leaves(document: Mapping[str, object], label: str, sections: Collection[str]) -> Tree:
    """Make leaves of a recipe that was stored as JSON; its paths are absolute already."""
    return {key: Leaf(value=value, source=label) for key, value in _entries(document, sections)}


def override_leaves(options: Sequence[tuple[str, str | None]]) -> Tree:
    """Make leaves of command-line options (dotted key, value or None where none was given); the last one counts."""
    here = Path.cwd()
    tree = {}
    for name, value in options:
        section, _, key = name.rpartition(".")
        tree[section, key] = Leaf(value=value, source=COMMAND_LINE, folder=here, is_text=True)
    return tree


def merge(recipe: Tree, overrides: Tree) -> Tree:
    """Lay the command line over the recipe; what it chooses drops what the recipe says of other choices.

    An exclusive option drops the recipe's other ones, a ``family`` or ``name`` the options that it does not have.
    """
    merged = {**recipe, **overrides}
    for group in EXCLUSIVE:
        chosen = [key for key in group if key in overrides and _is_set(overrides[key])]
        if chosen:
            _drop(merged, chosen[0], [key for key in group if key in recipe and key not in overrides])
    for section, tag in TAGS.items():
        if (section, tag) in overrides:
            own = [key for key in recipe if key[0] == section and key not in overrides]
            _drop(merged, (section, tag), [key for key in own if _is_of_others(key, overrides[section, tag].value)])
    return merged


def _drop(merged: Tree, chosen: Key, dropped: list[Key]) -> None:
    """Take keys out; the source of the chosen one tells what it stands in place of."""
    if dropped:
        before = ", ".join(f"{dotted(key)} ({merged[key].source})" for key in dropped)
        merged[chosen] = replace(merged[chosen], source=f"{COMMAND_LINE}, in place of {before}")
    for key in dropped:
        del merged[key]


def _is_of_others(key: Key, tag: object) -> bool:
    """Tell whether other choices of the section have this option, and the chosen one has not."""
    known = choices(key[0])
    if not isinstance(tag, str) or tag not in known:
        return False
    return key[1] not in describe(known[tag]) and any(key[1] in describe(other) for other in known.values())


def _entries(document: Mapping[str, object], sections: Collection[str]) -> Iterator[tuple[Key, object]]:
    for name, value in document.items():
        if name in sections and isinstance(value, dict):
            yield from (((name, key), entry) for key, entry in value.items())
        else:
            yield ("", name), value


def _is_set(leaf: Leaf) -> bool:
    return leaf.value is None or str(leaf.value).lower() not in ("none", "false")


def _read_text(path: Path, label: str) -> str:
    try:
        if not path.is_file():
            raise RecipeError([f"{label}: {_of_a_folder(path) if path.is_dir() else 'no such recipe file'}"])
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise RecipeError([f"{label}: cannot be read: {error.strerror or error}"]) from None
    if len(content) > LARGEST_FILE:
        raise RecipeError([f"{label}: larger than {LARGEST_FILE} bytes; is it a recipe?"])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RecipeError([f"{label}:{line}: not UTF-8 at byte {error.start}; save the recipe as UTF-8"]) from None


def _of_a_folder(path: Path) -> str:
    """Say what a folder in the place of a recipe may be meant for."""
    if (path / "recipe.toml").is_file():
        return f"is a folder, not a recipe file; the recipe of the run there is {path / 'recipe.toml'}"
    return f"is a folder, not a recipe file; to train on it: hornbook train demo --data.train {path}"


def _syntax_message(message: str, label: str) -> str:
    place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    where = f"{label}:{place[1]}:{place[2]}" if place else label
    reason = message[: place.start()] if place else message
    return f"{where}: not TOML: {' '.join(reason.split())}"


def _locate(text: str) -> Iterator[tuple[Key, int]]:
    """Yield each key's line number, as far as a scan by lines can tell."""
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([\w-]+)\s*\]", line):
            section = header[1]
            yield ("", section), number
        elif assignment := re.match(r"\s*([\w-]+)\s*(?:\.\s*([\w-]+)\s*)?=", line):
            first, second = assignment[1], assignment[2]
            yield (((section, first) if section or second is None else (first, second)), number)
