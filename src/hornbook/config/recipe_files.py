"""Finding and reading recipe files: bundled ones by name, others by path, and that of a run by the run's folder.

find_recipe("gpt2-small")  -> .../hornbook/config/recipes/gpt2-small.toml
find_recipe("runs/mine")   -> runs/mine/recipe.toml
run_of(that)               -> runs/mine
"""

import re
import tomllib
from pathlib import Path

from hornbook.config.options import show
from hornbook.config.suggest import did_you_mean, did_you_mean_path
from hornbook.errors import RecipeError

FOLDER = Path(__file__).parent / "recipes"
LARGEST_FILE = 1 << 20
"""A recipe file with more bytes is refused as a whole."""
_RECIPE, _IDENTITY = "recipe.toml", "run.json"
"""The files of a run's folder by which `hornbook train` knows it."""
_TRAIN = "to train on it: hornbook train demo --data.train"


def bundled_recipes() -> dict[str, Path]:
    """Return the files of the package's recipes by name, in alphabetical order."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"), key=lambda path: path.stem)}


def find_recipe(reference: str) -> Path:
    """Find a recipe: a bundled one by name, that of a run by its folder, another by its path.

    A path has a slash or ends in ``.toml``, except that of a run.

    Raises RecipeError if it is none of these; the message suggests the nearest names.
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
    hint = f"; did you mean one of {', '.join(family)}?" if family else did_you_mean(reference, bundled)
    raise RecipeError([f"recipe {show(reference)}: no such bundled recipe{hint or '; `hornbook recipes` lists them'}"])


def run_of(recipe: Path) -> Path | None:
    """Return the run's folder that a recipe file belongs to; None if it belongs to none."""
    return recipe.parent if recipe.name == _RECIPE and (recipe.parent / _IDENTITY).is_file() else None


def _size(path: Path) -> tuple[int, ...]:
    """Return width and depth of a recipe's model; () if it starts from another recipe, which has them."""
    model = tomllib.loads(path.read_text(encoding="utf-8")).get("model")
    return (model["hidden_size"], model["num_layers"]) if model else ()


def read_document(path: Path, label: str) -> tuple[dict[str, object], str]:
    """Read a recipe file, which messages call ``label``; return the parsed TOML and its text.

    Raises RecipeError if the file cannot be read, is too large, or is not UTF-8 or not TOML (with line and column).
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
            is_imported = (path / "checkpoints").is_dir()
            hint = f"to start a run from its weights: --init-from {path}" if is_imported else f"{_TRAIN} {path}"
            raise RecipeError([f"{label}: is a folder, neither a recipe file nor a run; {hint}"])
        if not path.is_file():
            raise RecipeError([f"{label}: no such recipe file or run{did_you_mean_path(path)}"])
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise RecipeError([f"{label}: cannot be read: {error.strerror or error}"]) from None
    if len(content) > LARGEST_FILE:
        raise RecipeError([f"{label}: larger than {LARGEST_FILE} bytes; is it a recipe?"])
    return content
