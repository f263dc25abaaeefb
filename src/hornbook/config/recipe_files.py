"""Find and read recipe files, and merge them with the command line, without validation.

::

    find_recipe("gpt2-small")   .../hornbook/config/recipes/gpt2-small.toml
    find_recipe("runs/mine")    runs/mine/recipe.toml

    from = "gpt2-small"         {("training", "seed"): Leaf(1234, "gpt2-small:20"), ...}
    [training]                  {("training", "steps"): Leaf(500, "my.toml:3")}
    steps = 500
    --training.epochs 2         {("training", "epochs"): Leaf("2", "command line")}

                             -> {("training", "seed"): Leaf(1234, "gpt2-small:20"), ...,
                                 ("training", "epochs"): Leaf("2", "command line, in place of training.steps (...)")}

Since the TOML parser has no line numbers, they come from a scan of the text, in which all keys of an inline table have
the line of the table.
"""

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hornbook.config.options import TAGS, Mistake, absolute, choices, describe, show
from hornbook.config.recipe import EXCLUSIVE, SECTIONS, Key, dotted, entries_of, specs
from hornbook.config.suggest import did_you_mean, did_you_mean_path
from hornbook.errors import RecipeError

FOLDER = Path(__file__).parent / "recipes"
LARGEST_FILE = 1 << 20
"""Maximum size of a recipe file in bytes."""
_DEEP_KEY = re.compile(r"(?:\.[^.\n=,\[\]{}#]+){100}")
"""A dotted key for which the parser would take memory in proportion to the square of its length."""
IDENTITY = "run.json"
"""The file with the identity of a run; see `hornbook.run.run_folder`."""
_RECIPE = "recipe.toml"
_WEIGHTS = ("checkpoints", "state.json", "config.json")  # in a run, a checkpoint and a Hugging Face folder
"""The files by which `hornbook train` recognizes a run folder."""
COMMAND_LINE = "command line"
SHORT: dict[str, Key] = {
    "name": ("", "name"),
    "data": ("data", "train"),
    "sequence-length": ("data", "sequence_length"),
    "steps": ("training", "steps"),
    "epochs": ("training", "epochs"),
    "batch-size": ("training", "global_batch_size"),
    "micro-batch-size": ("training", "micro_batch_size"),
    "seed": ("training", "seed"),
    "lr": ("optimizer", "learning_rate"),
    "weight-decay": ("optimizer", "weight_decay"),
    "warmup-steps": ("schedule", "warmup_steps"),
    "dtype": ("precision", "compute"),
}
"""Short names of the most frequent recipe options on the command line."""
_OPTION = re.compile(r"--(?P<key>[\w-]+(?:\.[\w-]*)*)(?:=(?P<value>.*))?", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """An unvalidated value, with a description of its source and the folder for relative paths, if there may be any.

    On the command line, the value is text, or None for an option without a value.
    """

    value: object
    source: str
    folder: Path | None = None
    is_text: bool = False
    dropped: "Tree" = field(default_factory=dict)
    """The leaves that this one removed from the recipe, and the recipe's tag if this is another one."""


Tree = dict[Key, Leaf]
START = ("", "from")
"""Key of a recipe file with the recipe that it starts from."""


def bundled_recipes() -> dict[str, Path]:
    """Return the paths of the bundled recipes by name, in alphabetical order.

    Those in ``old_systems`` are the layouts and fine-tunings that the old systems shipped.
    """
    return {path.stem: path for path in sorted(FOLDER.rglob("*.toml"), key=lambda path: path.stem)}


def find_recipe(reference: str) -> Path:
    """Return the path of a recipe, given the name of a bundled recipe, the folder of a run, or a path.

    Paths contain a slash or end with ``.toml``, except those of runs.

    Raises RecipeError if it does not exist; the message suggests similar names.
    """
    bundled = bundled_recipes()
    if reference in bundled:
        return bundled[reference]
    path = Path(reference)
    if run_of(path / _RECIPE) is not None:
        return path / _RECIPE
    if path.suffix == ".toml" or "/" in reference or (path / "checkpoints").is_dir():
        return path
    sizes = {name: _size(path) for name, path in bundled.items() if name.startswith(f"{reference}-")}
    family = sorted((name for name in sizes if sizes[name]), key=lambda name: (sizes[name], name))
    if path.is_dir() and not family:
        return path
    if path.is_file():
        known = f"no such bundled recipe; if the file {reference} is a recipe, name it ./{reference}"
        raise RecipeError([f"recipe {show(reference)}: {known}"])
    hint = f"; did you mean one of {', '.join(family)}?" if family[1:] else did_you_mean(reference, family or bundled)
    raise RecipeError([f"recipe {show(reference)}: no such bundled recipe{hint or '; `hornbook recipes` lists them'}"])


def run_of(recipe: Path) -> Path | None:
    """Return the run folder of a recipe file; None if it is not in one."""
    return recipe.parent if recipe.name == _RECIPE and (recipe.parent / IDENTITY).is_file() else None


def _size(path: Path) -> tuple[int, ...]:
    """Return hidden size and number of layers of a recipe, its own or inherited; () if it changes no model."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    if "model" not in document:
        return ()
    inherited = _size(bundled_recipes()[document["from"]]) if "from" in document else (0, 0)
    sizes = zip(("hidden_size", "num_layers"), inherited, strict=True)
    return tuple(document["model"].get(key, size) for key, size in sizes)


def read_document(path: Path, label: str) -> tuple[dict[str, object], str]:
    """Read a recipe file and return the parsed TOML and its text; ``label`` is its name in messages.

    Raises RecipeError if the file cannot be read, is too large, or is not UTF-8 or not TOML (with line and column).
    """
    content = _read(path, label)
    try:
        text = content.decode("utf-8-sig")
        if _DEEP_KEY.search(text):
            raise RecursionError
        return tomllib.loads(text), text
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RecipeError([f"{label}:{line}: not UTF-8 at byte {error.start}; save the recipe as UTF-8"]) from None
    except RecursionError:
        raise RecipeError([f"{label}: not a recipe: keys, tables or arrays are nested too deeply"]) from None
    except ValueError as error:  # TOMLDecodeError, or an integer with thousands of digits
        message, _, position = str(error).partition(" (at line ")
        numbers = "".join(f":{number}" for number in re.findall(r"\d+", position))
        raise RecipeError([f"{label}{numbers}: not TOML: {' '.join(message.split())}"]) from None


def _read(path: Path, label: str) -> bytes:
    try:
        if path.is_dir():
            has_weights = any((path / name).exists() for name in _WEIGHTS)
            hint = (
                f"to start a run from its weights: `init_from={str(path)!r}`"
                if has_weights
                else f"to train on it: `data.train={str(path)!r}`"
            )
            raise RecipeError([f"{label}: is a folder, neither a recipe file nor a run; {hint}"])
        if path.exists() and not path.is_file():
            raise RecipeError(
                [f"{label}: is a pipe or a device, which can be read only once; save the recipe as a file"]
            )
        if not path.is_file() and (run := run_of(path)) is not None:
            hint = "restore it, or repeat the command that started the run with `output`, which writes it again"
            raise RecipeError([f"{run}: is the folder of a run, but its {_RECIPE} is missing; {hint}"])
        if not path.is_file():
            hint = did_you_mean_path(path) or "; `hornbook recipes` lists the bundled recipes"
            raise RecipeError([f"{label}: no such recipe file or run{hint}"])
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise RecipeError([f"{label}: cannot be read: {error.strerror or error}"]) from None
    if len(content) > LARGEST_FILE:
        raise RecipeError([f"{label}: larger than {LARGEST_FILE} bytes; is it a recipe?"])
    return content


def read_leaves(path: Path, name: str, above: tuple[Path, ...] = ()) -> Tree:
    """Return the leaves of a recipe file, merged over those of the recipe that it starts ``from``, except the name.

    Args:
        path: of the file.
        name: its name in messages.
        above: the files that start from this one.

    Raises:
        RecipeError: a file cannot be read, ``from`` is not a recipe, or recipes start from each other in a cycle.
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
    """Return the leaves of a parsed recipe file; a table that is not a section becomes one leaf."""
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


def split_overrides(words: Sequence[str], taken: Collection[str] = ()) -> tuple[Tree, list[str]]:
    """Extract the recipe's options from command-line words.

    A recipe option contains a dot, or is in ``SHORT``; dashes and underscores are equivalent. The next word is its
    value unless it starts with two dashes (use ``--section.key=--value``); for a boolean, only if it is ``true``,
    ``false`` or ``none``. The last of several values counts, and words after a bare ``--`` are not options.

    Args:
        words: of the command line.
        taken: short names that have another meaning there.

    Returns:
        The leaves of the options, and the other words.
    """
    tree: Tree = {}
    rest: list[str] = []
    here, index = Path.cwd(), 0
    while index < len(words) and words[index] != "--":
        match = _OPTION.fullmatch(words[index])
        index += 1
        key: Key | None = None
        if match:
            (section, dot, name), short = match["key"].replace("-", "_").rpartition("."), match["key"].replace("_", "-")
            key = (section, name) if dot else None if short in taken else SHORT.get(short)
        if match is None or key is None:
            rest.append(words[index - 1])
            continue
        value = match["value"]
        if value is None and index < len(words) and _is_value(key, words[index]):
            value = words[index]
            index += 1
        tree[key] = Leaf(value=value, source=COMMAND_LINE, folder=here, is_text=True)
    return tree, [*rest, *words[index:]]


def _is_value(key: Key, word: str) -> bool:
    owners = specs(key[0]).get(key[1], []) if key[0] in SECTIONS else []
    is_boolean = any(spec.type is bool for _, spec in owners)
    return word.lower() in ("true", "false", "none") if is_boolean else not word.startswith("--")


def merge(recipe: Tree, overrides: Tree) -> Tree:
    """Return the recipe's leaves with those of the command line merged over them.

    An option of the command line removes options of the recipe that it excludes. Another ``name`` of an objective, an
    optimizer or a schedule removes all of its section's options, since they were chosen for the other one; another
    ``family`` of a model, which keeps its size, only those that the family lacks.
    """
    merged = {**recipe, **overrides}
    for group in EXCLUSIVE:
        values = {key: overrides[key].value for key in group if key in overrides}
        if given := [
            key for key, value in values.items() if str(value).lower() not in ("none", "false") or value is None
        ]:
            _drop(merged, given[0], [key for key in group if key in recipe and key not in overrides])
    for section, tag in TAGS.items():
        leaf, known = overrides.get((section, tag)), choices(section)
        if leaf and isinstance(leaf.value, str) and leaf.value in known:
            default = Leaf(value=getattr(SECTIONS[section](), tag), source="default")
            before = recipe.get((section, tag), default)
            is_reset = section != "model" and leaf.value != before.value
            kept = set() if is_reset else set(describe(known[leaf.value]))
            own = [key for key in recipe if key[0] == section and key not in overrides]
            _drop(merged, (section, tag), [key for key in own if key[1] in specs(section).keys() - kept])
            if is_reset:
                now = merged[section, tag]
                merged[section, tag] = replace(now, dropped={**now.dropped, (section, tag): before})
    return merged


def _drop(merged: Tree, chosen: Key, keys: list[Key]) -> None:
    """Remove the given keys from ``merged``, and mention them in the source of ``chosen``."""
    dropped = {key: merged.pop(key) for key in keys if key in merged}
    if dropped:
        before = ", ".join(f"{dotted(key)} ({leaf.source})" for key, leaf in dropped.items())
        source = f"{merged[chosen].source}, in place of {before}"
        merged[chosen] = replace(merged[chosen], source=source, dropped={**merged[chosen].dropped, **dropped})
