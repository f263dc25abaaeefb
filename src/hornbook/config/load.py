"""Recipes in and out: from file and command line to a checked ``Recipe``, and back to TOML or JSON.

    load_recipe("my.toml", ["--optimizer.learning-rate", "3e-4"])
        -> Resolved(recipe=Recipe(...), path=Path("my.toml"),
                    sources={"model.num_layers": "my.toml:2", "optimizer.learning_rate": "command line",
                             "training.seed": "default", ...})

Defaults < recipe < command line. The price of one tree with sources: a recipe is two levels deep, sections of scalars
and lists of names.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hornbook.config.build import SECTIONS, Built, build, describe_conflict, flatten
from hornbook.config.options import Problem, describe
from hornbook.config.overrides import read_overrides
from hornbook.config.presets import find_recipe
from hornbook.config.recipe import Recipe
from hornbook.config.registry import TAGS, choices
from hornbook.config.tree import Leaf, document_leaves, file_leaves, merge, read_document
from hornbook.config.values import kind_of, show
from hornbook.errors import RecipeError

COMMENT_COLUMN = 40


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A checked recipe, where each of its values came from (by dotted key), and the recipe's file."""

    recipe: Recipe
    sources: dict[str, str]
    path: Path


class Change(NamedTuple):
    """A value that differs between two recipes."""

    key: str
    old: object
    new: object


def load_recipe(reference: str, overrides: Sequence[str] = (), *, require_data: bool = True) -> Resolved:
    """Load a recipe by name or path and lay command-line words over it.

    Args:
        reference: the name of a bundled recipe, or a path.
        overrides: command-line words, such as ``["--optimizer.learning-rate", "3e-4", "--data.synthetic"]``.
        require_data: a recipe that says neither ``data.train`` nor ``data.synthetic`` is a mistake. Bundled recipes are
            such, and False lets them be looked at.

    Raises:
        RecipeError: every mistake of file and command line at once, or the first that kept the file from being read.
    """
    overridden = read_overrides(overrides)
    path, label = (find_recipe(reference), reference if reference.isprintable() else show(reference))
    document, text = read_document(path, label)
    tree = merge(file_leaves(document, text, label, path.parent, SECTIONS), overridden)
    tree.setdefault(("", "name"), Leaf(value=_name_of(path), source="name of the file"))
    built = build(tree)
    problems = built.problems + (_lack_of_data(built) if require_data else [])
    if problems:
        raise RecipeError(problems)
    return Resolved(recipe=built.recipe, sources=built.sources, path=path)


def recipe_from_dict(document: object, label: str = "recipe") -> Recipe:
    """Make a recipe of what ``recipe_to_dict`` gave, checked like any other; missing keys take their defaults.

    Raises:
        RecipeError: every mistake at once, each with ``label``.
    """
    if not isinstance(document, Mapping):
        raise RecipeError([f"{label}: expected a table of sections, got {kind_of(document)}"])
    built = build(document_leaves(document, label, SECTIONS))
    if built.problems:
        raise RecipeError(built.problems)
    return built.recipe


def refuse_unknown_parts(document: object, source: str) -> None:
    """Refuse a stored recipe with a part that is not registered, as a script of one's own has done.

    Args:
        document: as ``recipe_to_dict`` gave it; what else is wrong with it is left to ``recipe_from_dict``.
        source: the run or the checkpoint that it is of.

    Raises:
        RecipeError: it names such a part; one line, whatever else the part has.
    """
    sections = document if isinstance(document, Mapping) else {}
    for section, key in TAGS.items():
        values = sections.get(section)
        tag = values.get(key) if isinstance(values, Mapping) else None
        if isinstance(tag, str) and tag not in choices(section):
            what = "of the family" if section == "model" else f"made with the {section}"
            raise RecipeError(
                [
                    f"{source} holds a model {what} {show(tag)}, which hornbook does not have: run this command by the "
                    "script that registers it, python SCRIPT.py in place of hornbook"
                ]
            )


def recipe_to_dict(recipe: Recipe) -> dict[str, object]:
    """Turn a recipe into nested dictionaries of JSON's types."""
    nested: dict[str, object] = {name: getattr(recipe, name) for name in describe(Recipe)}
    for section in SECTIONS:
        values = getattr(recipe, section)
        nested[section] = {name: getattr(values, name) for name in describe(type(values))}
    return nested


def recipe_to_toml(recipe: Recipe, sources: Mapping[str, str] | None = None) -> str:
    """Write a recipe as TOML that loads back equal; with ``sources``, each line says where its value came from.

    An optional value that is unset is left out, or written ``"none"`` where its default is another.
    """
    blocks = [_block(recipe, "", sources)]
    blocks += [f"[{section}]\n{_block(getattr(recipe, section), f'{section}.', sources)}" for section in SECTIONS]
    return "\n".join(blocks)


def changed_keys(old: Recipe, new: Recipe) -> list[Change]:
    """List every value that differs, by dotted key; one that only one of them has is None in the other."""
    before, after = flatten(old), flatten(new)
    keys = [*before, *(key for key in after if key not in before)]
    return [Change(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def _lack_of_data(built: Built) -> list[str]:
    """Say that there is nothing to train on."""
    data = built.recipe.data
    if data.train or data.synthetic or any(problem.startswith("data.") for problem in built.problems):
        return []
    problem = Problem(
        ("data.train",), "nothing to train on; give a token store, --data.train PATH, or --data.synthetic"
    )
    return [describe_conflict(problem, built.recipe, built.sources)]


def _name_of(path: Path) -> str:
    """Make a run's name of a recipe's file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).lstrip("_.-")[:100] or "recipe"


def _block(values: object, prefix: str, sources: Mapping[str, str] | None) -> str:
    """Write one section's lines."""
    lines = []
    for name, spec in describe(type(values)).items():
        value = getattr(values, name)
        if value is None and spec.default is None:
            line = f"# {name} is unset" if sources is not None else ""
        else:
            line = f"{name} = {_toml(value)}"
        if line and sources is not None:
            line = f"{line:<{COMMENT_COLUMN - 1}} # {sources.get(prefix + name, 'default')}"
        lines.append(f"{line}\n" if line else "")
    return "".join(lines)


def _toml(value: object) -> str:
    """Write a scalar, or a list of names, as TOML."""
    if value is None:
        return '"none"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
