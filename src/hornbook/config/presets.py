"""The recipes that come with the package, and how a recipe is found.

    find_recipe("gpt2-small")        -> .../hornbook/config/recipes/gpt2-small.toml
    find_recipe("experiments/a.toml") -> experiments/a.toml

A bundled name comes first; anything else is a path, and needs a slash or the ending ``.toml``, so that a misspelt name
can be told from a missing file. The price is a recipe called ``demo`` in the working directory: it is ``./demo``.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from hornbook.config.suggest import did_you_mean
from hornbook.config.values import show
from hornbook.errors import RecipeError

FOLDER = Path(__file__).parent / "recipes"


@dataclass(frozen=True, kw_only=True)
class BundledRecipe:
    """A recipe of the package: its name, what its file's first comment line says, and the file."""

    name: str
    description: str
    path: Path


def bundled_recipes() -> dict[str, BundledRecipe]:
    """List the package's recipes by name, in alphabetical order."""
    return {path.stem: _bundled(path) for path in sorted(FOLDER.glob("*.toml"))}


def find_recipe(reference: str) -> Path:
    """Find a recipe by the name of a bundled one or by path.

    Raises:
        RecipeError: a word that is neither; it suggests the nearest name.
    """
    bundled = bundled_recipes()
    if reference in bundled:
        return bundled[reference].path
    path = Path(reference)
    if path.suffix == ".toml" or len(path.parts) > 1:
        return path
    family = _family(reference, bundled)
    hint = f"; did you mean one of {', '.join(family)}?" if family else did_you_mean(reference, bundled)
    raise RecipeError([f"recipe {show(reference)}: no such bundled recipe{hint or '; `hornbook recipes` lists them'}"])


def _family(reference: str, bundled: dict[str, BundledRecipe]) -> list[str]:
    """List the names that go on behind ``reference`` and a dash, the smallest model first."""
    names = [name for name in bundled if name.startswith(f"{reference}-")]
    return sorted(names, key=lambda name: (_size(bundled[name].path), name))


def _size(path: Path) -> tuple[int, int]:
    """Return width and depth of a recipe's model."""
    model = tomllib.loads(path.read_text(encoding="utf-8"))["model"]
    return model["hidden_size"], model["num_layers"]


def _bundled(path: Path) -> BundledRecipe:
    with path.open(encoding="utf-8") as file:
        return BundledRecipe(name=path.stem, description=file.readline().lstrip("#").strip(), path=path)
