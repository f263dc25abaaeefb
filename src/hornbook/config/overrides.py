"""Override options of a recipe by dotted name, from Python.

{"training.steps": 300, "data.train": Path("corpora/mine")}
-> {("training", "steps"): Leaf(300, "overrides"), ("data", "train"): Leaf("corpora/mine", "overrides")}
"""

from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path

from hornbook.config.build import Resolved, resolve
from hornbook.config.options import kind_of, show
from hornbook.config.recipe import Recipe, flatten
from hornbook.config.recipe_files import Leaf, Tree, merge
from hornbook.errors import RecipeError


def override_leaves(values: Mapping[str, object], source: str = "overrides") -> Tree:
    """Return the leaves of options given by dotted name; dashes and underscores are equivalent.

    Args:
        values: typed as in a recipe file; a path may be a ``Path``, and None is ``"none"``. Paths are relative to the
            working directory.
        source: name of the values' source in messages.

    Raises:
        RecipeError: ``values`` is no dictionary of dotted names.
    """
    expected = f'{source}: expected a dictionary of dotted names, such as {{"training.steps": 300}}, got'
    if not isinstance(values, Mapping):
        raise RecipeError([f"{expected} {kind_of(values)}"])
    tree: Tree = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise RecipeError([f"{expected} the key {show(name)}"])
        if isinstance(value, Mapping):
            raise RecipeError([f"{expected} a dictionary under {show(name)}"])
        section, _, key = name.replace("-", "_").rpartition(".")
        entries = [_plain(entry) for entry in value] if isinstance(value, list | tuple) else _plain(value)
        tree[section, key] = Leaf(value=entries, source=source, folder=Path.cwd())
    return tree


def override_recipe(recipe: Recipe, overrides: Tree) -> Resolved:
    """Return ``recipe`` with overridden options, validated.

    Raises:
        RecipeError: lists all mistakes.
    """
    return resolve(merge(override_leaves(flatten(recipe), "recipe"), overrides), Path(recipe.name))


def _plain(value: object) -> object:
    """Return a value as in a recipe file; a number of NumPy as Python's."""
    if value is None or isinstance(value, Path):
        return "none" if value is None else str(value)
    if isinstance(value, int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)
