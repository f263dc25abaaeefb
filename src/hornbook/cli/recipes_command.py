"""``hornbook recipes``: list (by default), show and copy the bundled recipes.

hornbook recipes
family  name        parameters  layers  hidden
gpt     gpt2-small        124M      12     768  GPT-2 small (Radford et al. 2019, there called 117M)

hornbook recipes copy gpt2-small mine.toml
"""

import argparse
import os
from pathlib import Path

from hornbook.cli.table import print_columns, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``list``, ``show`` and ``copy``."""
    parser.set_defaults(handler=list_command)
    of_old_systems = "also the layouts and fine-tunings that the old systems shipped"
    parser.add_argument("--all", action="store_true", help=of_old_systems)
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND")
    listed = commands.add_parser("list", help="list the recipes (default)", description="List the bundled recipes.")
    listed.set_defaults(handler=list_command)
    listed.add_argument("--all", action="store_true", default=argparse.SUPPRESS, help=of_old_systems)
    shown = commands.add_parser("show", help="print a recipe", description="Print a recipe's file, with its comments.")
    shown.set_defaults(handler=show_command)
    copied = commands.add_parser(
        "copy", help="write a recipe to a file", description="Write a bundled recipe, with its comments, to a file."
    )
    copied.set_defaults(handler=copy_command)
    for command in (shown, copied):
        command.add_argument("recipe", metavar="NAME", help="name of a bundled recipe")
    copied.add_argument("file", type=Path, metavar="FILE", help="file to write, such as mine.toml")
    copied.add_argument("--force", action="store_true", help="replace FILE if it exists")


def show_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Print a recipe's file."""
    text = _text_of(arguments)
    print(text, end="")
    return {"name": arguments.recipe, "text": text}


def copy_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Copy a recipe to a file.

    Raises:
        UserError: the file exists, or it is a folder.
        StorageError: it cannot be written.
    """
    from hornbook.errors import UserError
    from hornbook.storage import replace_file

    text, file = _text_of(arguments), arguments.file
    if file.is_dir():
        raise UserError(f"{file} is a folder; name the file, as in {file / arguments.recipe}.toml")
    if os.path.lexists(file) and not arguments.force:
        raise UserError(f"{file} exists already; choose another file, or replace it with --force")
    replace_file(file, text.encode())
    say(f"{file}: {arguments.recipe}; `hornbook train {file} --data.train STORE` trains it")
    return {"name": arguments.recipe, "file": str(file)}


def _text_of(arguments: argparse.Namespace) -> str:
    """Return the text of a bundled recipe.

    Raises:
        UserError: ``--all``, an option of the list, is given.
        RecipeError: the recipe does not exist.
    """
    from hornbook.config import bundled_recipes, find_recipe
    from hornbook.errors import RecipeError, UserError

    if arguments.all:
        raise UserError(f"--all is an option of `hornbook recipes list`, not of {arguments.subcommand}: leave it out")
    name, bundled = arguments.recipe, bundled_recipes()
    if name not in bundled:
        find_recipe(name)  # raises an error that suggests a similar name, unless it is a path
        raise RecipeError([f"recipe {name}: expected the name of a bundled recipe; `hornbook recipes` lists them"])
    return bundled[name].read_text(encoding="utf-8")


def list_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Print the bundled recipes by family, smallest model first."""
    from hornbook.config import bundled_recipes, load_recipe
    from hornbook.config.options import choices
    from hornbook.track.units import short

    bundled = bundled_recipes()
    chosen = [name for name, path in bundled.items() if arguments.all or path.parent.name != "old_systems"]
    loaded = {name: load_recipe(name, require_data=False).recipe for name in chosen}
    families = list(choices("model"))
    chosen.sort(key=lambda name: (families.index(loaded[name].model.family), loaded[name].num_parameters()))
    rows = [("family", "name", "parameters ", "layers", "hidden", "")]
    recipes = []
    for name in chosen:
        path = bundled[name]
        with path.open(encoding="utf-8") as file:
            description = file.readline().lstrip("#").strip()  # the first line is a description
        model, num_parameters = loaded[name].model, loaded[name].num_parameters()
        parameters = short(num_parameters) + (" " if model.vocab_size else "*")
        rows.append((model.family, name, parameters, str(model.num_layers), str(model.hidden_size), description))
        sizes = {key: getattr(model, key) for key in ("family", "num_layers", "hidden_size", "vocab_size")}
        found = {"name": name, "description": description, "parameters": num_parameters}
        recipes.append({**found, **sizes, "path": str(path)})
    print_columns(rows, right=range(2, 5))
    say("* plus the token table, whose size depends on the corpus's vocabulary")
    if hidden := len(bundled) - len(chosen):
        say(f"`hornbook recipes --all` also lists {hidden} layouts and fine-tunings of the old systems.")
    say("", "`hornbook train NAME --data STORE` trains one; `hornbook recipes copy NAME FILE` starts your own.")
    return {"recipes": recipes}
