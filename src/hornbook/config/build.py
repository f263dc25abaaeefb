"""From what was written to a checked ``Recipe`` with every mistake at once, and back to TOML or JSON.

    load_recipe("my.toml", ["--optimizer.learning-rate", "3e-4"])
        -> Resolved(recipe=Recipe(...), path=Path("my.toml"),
                    sources={"model.num_layers": "my.toml:2", "optimizer.learning_rate": "command line",
                             "training.seed": "default", ...})

Defaults < recipe < command line. Each section's tag picks its dataclass, and each leaf is converted. A value that fails
keeps its default, so that the checks of several fields still run over the others; a check that concerns a failed field
is skipped until that field is corrected.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from hornbook.config.document import (
    Key,
    Leaf,
    Tree,
    document_leaves,
    dotted,
    file_leaves,
    find_recipe,
    merge,
    read_document,
    split_overrides,
)
from hornbook.config.options import (
    TAGS,
    Mistake,
    Problem,
    Spec,
    absolute,
    choices,
    convert,
    describe,
    kind_of,
    parse_text,
    show,
)
from hornbook.config.recipe import SECTIONS, Recipe, specs
from hornbook.config.suggest import did_you_mean, nearest, usual
from hornbook.errors import RecipeError

MOST_KEYS = 500
"""A file with more keys is refused as a whole."""
COMMENT_COLUMN = 40


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A checked recipe, where each of its values came from (by dotted key), and the recipe's file or name."""

    recipe: Recipe
    sources: dict[str, str]
    path: Path


class Change(NamedTuple):
    """A value that differs between two recipes."""

    key: str
    old: object
    new: object


@dataclass(frozen=True, kw_only=True)
class _Report:
    """The mistakes found so far, and their keys."""

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
        reference: the name of a bundled recipe, or a path.
        overrides: words such as ``["--optimizer.learning-rate", "3e-4", "--data.synthetic"]``, or what
            ``split_overrides`` made of them.
        require_data: refuse a recipe with neither ``data.train`` nor ``data.synthetic``, such as the bundled ones.

    Raises:
        RecipeError: every mistake of file and command line at once, or the one that kept the file from being read.
    """
    tree, rest = (overrides, []) if isinstance(overrides, dict) else split_overrides(overrides)
    if rest:
        raise RecipeError([f"{show(rest[0])} (command line): expected a recipe option, --section.key value"])
    path, label = find_recipe(reference), reference if reference.isprintable() else show(reference)
    tree = merge(file_leaves(*read_document(path, label), label, path.parent), tree)
    file_name = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).lstrip("_.-")[:100] or "recipe"
    tree.setdefault(("", "name"), Leaf(value=file_name, source="name of the file"))
    return _resolve(tree, path, require_data=require_data)


def override_recipe(recipe: Recipe, overrides: Tree) -> Resolved:
    """Lay options over a recipe that is there already; its paths are relative to the working directory.

    Args:
        recipe: the recipe.
        overrides: what ``override_leaves`` made of them.

    Raises:
        RecipeError: every mistake at once.
    """
    own = document_leaves(recipe_to_dict(recipe), "recipe")
    tree = {key: replace(leaf, folder=Path.cwd()) for key, leaf in own.items()}
    return _resolve(merge(tree, overrides), Path(recipe.name), require_data=True)


def _resolve(tree: Tree, path: Path, *, require_data: bool) -> Resolved:
    """Check a merged tree.

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
    return Resolved(recipe=recipe, sources=sources, path=path)


def recipe_from_dict(document: object, label: str = "recipe") -> Recipe:
    """Make a recipe of what ``recipe_to_dict`` gave, checked like any other; missing keys take their defaults.

    Raises:
        RecipeError: every mistake at once, each with ``label``.
    """
    if not isinstance(document, Mapping):
        raise RecipeError([f"{label}: expected a table of sections, got {kind_of(document)}"])
    recipe, _, problems = _build(document_leaves(document, label))
    if problems:
        raise RecipeError(problems)
    return recipe


def refuse_unknown_parts(document: object, source: str) -> None:
    """Refuse a stored recipe with a part that is not registered, as a user's script has done.

    Args:
        document: as ``recipe_to_dict`` gave it; other mistakes are left to ``recipe_from_dict``.
        source: the run or the checkpoint that it is of.

    Raises:
        RecipeError: it names such a part; a single line.
    """
    sections = document if isinstance(document, Mapping) else {}
    for section, key in TAGS.items():
        values = sections.get(section)
        tag = values.get(key) if isinstance(values, Mapping) else None
        if isinstance(tag, str) and tag not in choices(section):
            what = "of the family" if section == "model" else f"made with the {section}"
            message = (
                f"{source} holds a model {what} {show(tag)}, which hornbook does not have: run this command by the "
                "script that registers it, python SCRIPT.py in place of hornbook"
            )
            raise RecipeError([message])


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """Turn a recipe into nested dictionaries of JSON's types."""
    return _options(recipe) | {section: _options(getattr(recipe, section)) for section in SECTIONS}


def _options(values: object) -> dict[str, Any]:
    return {name: getattr(values, name) for name in describe(type(values))}


def recipe_to_toml(recipe: Recipe, sources: Mapping[str, str] | None = None) -> str:
    """Write a recipe as TOML that loads back equal; with ``sources``, each line says where its value came from.

    An unset optional value is left out, or written ``"none"`` where its default is another.
    """
    blocks = [_block(recipe, "", sources)]
    blocks += [f"[{section}]\n{_block(getattr(recipe, section), f'{section}.', sources)}" for section in SECTIONS]
    return "\n".join(blocks)


def _block(values: object, prefix: str, sources: Mapping[str, str] | None) -> str:
    lines = []
    for name, value in _options(values).items():
        if value is not None or describe(type(values))[name].default is not None:
            line = f"{name} = {_toml(value)}"
        elif sources is not None:
            line = f"# {name} is unset"
        else:
            continue
        source = f" # {sources.get(prefix + name, 'default')}" if sources is not None else ""
        lines.append(f"{line:<{COMMENT_COLUMN - 1}}{source}".rstrip() + "\n")
    return "".join(lines)


def _toml(value: object) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def changed_keys(old: Recipe, new: Recipe) -> list[Change]:
    """List every value that differs, by dotted key; one that only one of them has is None in the other."""
    before, after = _flatten(old), _flatten(new)
    keys = [*before, *(key for key in after if key not in before)]
    return [Change(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def _flatten(recipe: Recipe) -> dict[str, object]:
    """Return every value by dotted key."""
    nested = recipe_to_dict(recipe)
    return {"name": recipe.name} | {f"{name}.{key}": value for name in SECTIONS for key, value in nested[name].items()}


def _build(tree: Tree) -> tuple[Recipe, dict[str, str], list[str]]:
    """Make a recipe of the merged tree; return it, the source of each value, and every mistake, one line each."""
    if len(tree) > MOST_KEYS:
        source = next(iter(tree.values())).source
        raise RecipeError([f"{source}: more than {MOST_KEYS} keys, so it is probably no recipe"])
    report = _Report()
    for (section, key), leaf in tree.items():
        if section not in SECTIONS and (section or key not in describe(Recipe)):
            _report_stray((section, key), leaf, report)
    parts: dict[str, Any] = {section: _build_section(section, tree, report) for section in SECTIONS}
    recipe = Recipe(**parts, **_convert_all("", describe(Recipe), tree, report))
    sources = dict.fromkeys(_flatten(recipe), "default") | {dotted(key): leaf.source for key, leaf in tree.items()}
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
    flat = _flatten(recipe)
    values = (f"{key} = {show(flat[key])} ({sources[key]})" for key in problem.keys)
    return f"{', '.join(values)}: {problem.message}"


def _build_section(section: str, tree: Tree, report: _Report) -> object:
    """Make one section's dataclass of the values that are sound."""
    tag = (section, TAGS.get(section, ""))
    leaf, known = tree.get(tag) if section in TAGS else None, choices(section) if section in TAGS else {}
    if leaf is None or (isinstance(leaf.value, str) and leaf.value in known):
        chosen = SECTIONS[section] if leaf is None else known[str(leaf.value)]
        return chosen(**_convert_all(section, describe(chosen), tree, report))
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
            report.add(key, leaf, _unknown(key, options, tree), with_value=False)
            continue
        try:
            values[key[1]] = _convert(leaf, options[key[1]])
        except Mistake as mistake:
            report.add(key, leaf, str(mistake))
    return values


def _convert(leaf: Leaf, spec: Spec) -> object:
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
        report.add(key, leaf, f"unknown key{_suggestion(key, {})}", with_value=False)


def _unknown(key: Key, options: dict[str, Spec], tree: Tree) -> str:
    """Say why a section has no such key: only other choices have it, or it is misspelled."""
    section, name = key
    tags = [f'"{tag}"' for tag, _ in specs(section).get(name, ()) if tag]
    if not tags:
        return f"unknown key{_suggestion(key, options)}"
    tag = (section, TAGS[section])
    chosen = tree[tag].value if tag in tree else describe(SECTIONS[section])[TAGS[section]].default
    listed = f"{', '.join(tags[:-1])} or {tags[-1]}" if len(tags) > 1 else tags[0]
    return f'applies only to {dotted(tag)} = {listed}, not "{chosen}"; remove it or change {dotted(tag)}'


def _suggestion(key: Key, options: dict[str, Spec]) -> str:
    """Suggest what other trainers call so, else the nearest key of the section, else the same word or the nearest."""
    everywhere = [*describe(Recipe), *(f"{section}.{name}" for section in SECTIONS for name in specs(section))]
    near = nearest(key[1], options)
    same = [known for known in everywhere if known.endswith(f".{key[1]}")]
    meant = usual(dotted(key), everywhere) or (near and dotted((key[0], near))) or (same[0] if same else None)
    return f'; did you mean "{meant}"?' if meant else did_you_mean(dotted(key), everywhere)
