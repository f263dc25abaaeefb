"""From what was written to a checked ``Recipe``, with every mistake at once.

    [training]                       {("training", "steps"): Leaf(500, "my.toml:2")}          <- the file
    steps = 500                 +    {("training", "epochs"): Leaf("2", "command line", ...)} <- --training.epochs 2
                                =    {("training", "epochs"): Leaf("2", "command line, in place of training.steps ...")}

    -> Resolved(recipe=Recipe(...), sources={"training.epochs": "command line, ...", "training.seed": "default", ...})

Defaults < recipe file < command line. Leaves are checked only when all are known: each section's tag picks its
dataclass, and each leaf is converted. A value that fails keeps its default, so that the checks of several fields still
run over the others; a check that concerns a failed field is skipped. The TOML parser keeps no line numbers; they come
from a scan of the text, which gives all keys of an inline table the line of the table.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hornbook.config.options import (
    TAGS,
    Mistake,
    Problem,
    Spec,
    UnknownPart,
    absolute,
    choices,
    convert,
    describe,
    kind_of,
    parse_text,
    show,
)
from hornbook.config.recipe import EXCLUSIVE, SCRIPTS, SECTIONS, Key, Recipe, dotted, flatten, specs
from hornbook.config.recipe_files import find_recipe, read_document, run_of
from hornbook.config.suggest import did_you_mean, why_unknown
from hornbook.errors import RecipeError

COMMAND_LINE = "command line"
MOST_KEYS = 500
"""A recipe with more keys is refused as a whole."""
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


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What a recipe file and the command line say, not yet checked."""

    file: Tree
    overrides: Tree
    path: Path
    notes: tuple[str, ...] = ()
    """What was replaced, a line each, for the user."""

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return str((self.overrides.get(("", "name")) or self.file["", "name"]).value)

    @property
    def output(self) -> Path:
        """The run's folder unless another is given: that of the recipe if it is a run's, else ``runs/<name>``."""
        return run_of(self.path) or Path("runs") / self.name


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A checked recipe, where each of its values came from (by dotted key), and the recipe's file or name."""

    recipe: Recipe
    sources: dict[str, str]
    path: Path
    output: Path
    """The run's folder, unless another is given."""
    notes: tuple[str, ...] = ()
    """What was replaced, a line each, for the user."""


@dataclass(frozen=True, kw_only=True)
class _Report:
    """The mistakes found so far, and their keys.

    ``keeps_unknown``: in a stored recipe, a part that is not registered, other than the model, is an ``UnknownPart``.
    """

    keeps_unknown: bool = False
    problems: list[str] = field(default_factory=list)
    failed: set[Key] = field(default_factory=set)

    def add(self, key: Key, leaf: Leaf, message: str, *, with_value: bool = True) -> None:
        """Add a line: the key, what was written there, where, and the message."""
        name = dotted(key) if re.fullmatch(r"[\w.-]{1,60}", dotted(key)) else show(dotted(key))
        is_shown = with_value and not (leaf.is_text and leaf.value is None)
        written = f" = {show(leaf.value, quote=not leaf.is_text)}" if is_shown else ""
        self.problems.append(f"{name}{written} ({leaf.source}): {message}")
        self.failed.add(key)


def load_recipe(reference: str, overrides: Sequence[str] | Tree = (), *, require_data: bool = True) -> Resolved:
    """Load a recipe by name or path and lay options of the command line over it.

    Args:
        reference: the name of a bundled recipe, a recipe file, or the folder of a run.
        overrides: words such as ``["--optimizer.learning-rate", "3e-4", "--data.synthetic"]``, or what
            ``split_overrides`` made of them.
        require_data: refuse a recipe with neither ``data.train`` nor ``data.synthetic``, such as the bundled ones.

    Raises:
        RecipeError: every mistake of file and command line at once, or the one that kept the file from being read.
    """
    return check(read_draft(reference, overrides), require_data=require_data)


def read_draft(reference: str, overrides: Sequence[str] | Tree = ()) -> Draft:
    """Return what ``load_recipe`` checks; raises RecipeError as it does if the file cannot be read."""
    tree, rest = (overrides, []) if isinstance(overrides, dict) else split_overrides(overrides)
    if rest:
        raise RecipeError([f"{show(rest[0])} (command line): expected a recipe option, --section.key value"])
    path = find_recipe(reference)
    name = str(path) if run_of(path) else reference
    label = name if name.isprintable() else show(name)
    file = file_leaves(*read_document(path, label), label, path.parent)
    file_name = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).lstrip("_.-")[:100] or "recipe"
    file.setdefault(("", "name"), Leaf(value=file_name, source="name of the file"))
    return Draft(file=file, overrides=tree, path=path)


def check(draft: Draft, *, require_data: bool = True) -> Resolved:
    """Return the recipe of a draft; arguments and errors as for ``load_recipe``."""
    draft = _fit_micro_batch(draft)
    resolved = resolve(merge(draft.file, draft.overrides), draft.path, require_data=require_data)
    return replace(resolved, notes=draft.notes)


def resolve(tree: Tree, path: Path, *, require_data: bool = True) -> Resolved:
    """Check a merged tree and return its recipe; ``path`` and ``require_data`` as in `Resolved` and `load_recipe`.

    Raises:
        RecipeError: every mistake at once.
    """
    recipe, sources, problems = _build(tree)
    is_known = recipe.data.train or recipe.data.synthetic or any(problem.startswith("data.") for problem in problems)
    if require_data and not is_known:
        message = "no training data; set --data.train PATH, or use --data.synthetic"
        problems.append(_conflict(Problem(("data.train",), message), recipe, sources))
    if problems:
        raise RecipeError(problems)
    return Resolved(recipe=recipe, sources=sources, path=path, output=run_of(path) or Path("runs") / recipe.name)


def _fit_micro_batch(draft: Draft) -> Draft:
    """Lower the recipe's micro-batch to the global batch of the command line, if it is larger."""
    batch, micro = ("training", "global_batch_size"), ("training", "micro_batch_size")
    if batch not in draft.overrides or micro in draft.overrides:
        return draft
    options = describe(SECTIONS["training"])
    before = draft.file.get(micro, Leaf(value=options[micro[1]].default, source="default"))
    try:
        largest, size = (
            convert_leaf(leaf, options[key]) for leaf, key in ((draft.overrides[batch], batch[1]), (before, micro[1]))
        )
    except Mistake:  # reported with all others
        return draft
    if not (isinstance(largest, int) and isinstance(size, int) and size > largest):
        return draft
    note = f"training.micro_batch_size is {largest}, the global batch, in place of {size} ({before.source})"
    lowered = Leaf(value=largest, source=f"training.global_batch_size, in place of {size} ({before.source})")
    return replace(draft, file={**draft.file, micro: lowered}, notes=(*draft.notes, note))


def recipe_from_dict(document: object, label: str = "recipe") -> Recipe:
    """Make a recipe of what ``recipe_to_dict`` gave, checked like any other; missing keys take their defaults.

    An objective, optimizer or schedule that is not registered becomes an ``UnknownPart``, since only training needs it.

    Raises:
        RecipeError: every mistake at once, each with ``label``.
    """
    if not isinstance(document, Mapping):
        raise RecipeError([f"{label}: expected a table of sections, got {kind_of(document)}"])
    leaves = {key: Leaf(value=value, source=label) for key, value in _entries(document) if key != ("", SCRIPTS)}
    recipe, _, problems = _build(leaves, keeps_unknown=True)
    if problems:
        raise RecipeError(problems)
    return recipe


def _build(tree: Tree, *, keeps_unknown: bool = False) -> tuple[Recipe, dict[str, str], list[str]]:
    """Make a recipe of the merged tree; return it, the source of each value, and every mistake, one line each."""
    if len(tree) > MOST_KEYS:
        source = next(iter(tree.values())).source
        raise RecipeError([f"{source}: more than {MOST_KEYS} keys, so it is probably no recipe"])
    report = _Report(keeps_unknown=keeps_unknown)
    for (section, key), leaf in tree.items():
        if section not in SECTIONS and (section or key not in describe(Recipe)):
            _report_stray((section, key), leaf, report)
    parts: dict[str, Any] = {section: _build_section(section, tree, report) for section in SECTIONS}
    recipe = Recipe(**parts, **_convert_all("", describe(Recipe), tree, report))
    sources = dict.fromkeys(flatten(recipe), "default") | {dotted(key): leaf.source for key, leaf in tree.items()}
    failed = {dotted(key) for key in report.failed}
    conflicts = [problem for problem in _conflicts(recipe) if failed.isdisjoint(problem.keys)]
    return recipe, sources, report.problems + [_conflict(problem, recipe, sources) for problem in conflicts]


def _conflicts(recipe: Recipe) -> Iterator[Problem]:
    """Yield the problems of each section, and then of the whole; keys are dotted."""
    for section in SECTIONS:
        check = getattr(getattr(recipe, section), "problems", None)
        for problem in check() if check else ():
            yield Problem(tuple(f"{section}.{key}" for key in problem.keys), problem.message)
    yield from recipe.problems()


def _conflict(problem: Problem, recipe: Recipe, sources: dict[str, str]) -> str:
    """Write a problem on one line, with the values and where each comes from."""
    flat = flatten(recipe)
    values = (f"{key} = {show(flat[key])} ({sources[key]})" for key in problem.keys)
    return f"{', '.join(values)}: {problem.message}"


def _build_section(section: str, tree: Tree, report: _Report) -> object:
    """Make one section's dataclass of the values that are sound."""
    tag = (section, TAGS.get(section, ""))
    leaf, known = tree.get(tag) if section in TAGS else None, choices(section) if section in TAGS else {}
    if leaf is None or (isinstance(leaf.value, str) and leaf.value in known):
        chosen = SECTIONS[section] if leaf is None else known[str(leaf.value)]
        return chosen(**_convert_all(section, describe(chosen), tree, report))
    if report.keeps_unknown and section != "model" and isinstance(leaf.value, str):
        given = {key[1]: own.value for key, own in tree.items() if key[0] == section}
        report.failed.update({tag, *((section, name) for name in given)})  # what concerns it cannot be checked
        return UnknownPart(name=leaf.value, options={key: value for key, value in given.items() if key != tag[1]})
    suggestion = did_you_mean(leaf.value, known) if isinstance(leaf.value, str) else ""
    listed = ", ".join(f'"{name}"' for name in known)
    report.add(tag, leaf, f"no such choice, expected one of {listed}{suggestion}")
    options = {name: owners[0][1] for name, owners in specs(section).items()}  # of any choice; no cross-checks
    _convert_all(section, options, {key: leaf for key, leaf in tree.items() if key[1] in options}, report)
    report.failed.update((section, name) for name in options)
    return SECTIONS[section]()


def _convert_all(section: str, options: dict[str, Spec], tree: Tree, report: _Report) -> dict[str, Any]:
    """Convert the leaves of a section; report mistakes and unknown keys."""
    values = {}
    for key, leaf in tree.items():
        if key[0] != section or key in report.failed:
            continue
        if key[1] not in options:
            tag = tree.get((section, TAGS.get(section, "")))
            report.add(key, leaf, why_unknown(key, options, tag.value if tag else None), with_value=False)
            continue
        try:
            values[key[1]] = convert_leaf(leaf, options[key[1]])
        except Mistake as mistake:
            report.add(key, leaf, str(mistake))
    return values


def convert_leaf(leaf: Leaf, spec: Spec) -> object:
    """Return the value of a leaf, checked; raises Mistake if the option does not take it."""
    value = convert(parse_text(leaf.value, spec) if leaf.is_text else leaf.value, spec)
    if spec.path and isinstance(value, tuple):
        return tuple(absolute(entry, leaf.folder, named=spec.named) for entry in value)
    return absolute(value, leaf.folder) if spec.path and isinstance(value, str) else value


def _report_stray(key: Key, leaf: Leaf, report: _Report) -> None:
    """Report a leaf that belongs to no section."""
    if key[1] in SECTIONS and not key[0]:
        report.add(key, leaf, f"expected a table, [{key[1]}], got {kind_of(leaf.value)}")
    elif isinstance(leaf.value, dict):
        report.add(key, leaf, f"unknown section{did_you_mean(key[1], SECTIONS)}", with_value=False)
    else:
        report.add(key, leaf, why_unknown(key, {}), with_value=False)


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
