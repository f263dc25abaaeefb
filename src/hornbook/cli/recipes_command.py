"""Lists the recipes that come with the package: ``hornbook recipes``.

name        parameters  layers  hidden
gpt2-small        124M      12     768  GPT-2 small (Radford et al. 2019, there called 117M)
"""

import argparse

from hornbook.cli.table import print_columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: none."""


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Print the list, smallest model first."""
    from hornbook.config import bundled_recipes, load_recipe
    from hornbook.track.units import short

    models = {name: load_recipe(name, require_data=False).recipe.model for name in bundled_recipes()}
    ordered = sorted(bundled_recipes().items(), key=lambda item: models[item[0]].num_parameters())
    rows = [("name", "parameters ", "layers", "hidden", "")]
    recipes = []
    for name, path in ordered:
        with path.open(encoding="utf-8") as file:
            description = file.readline().lstrip("#").strip()  # a recipe begins with a comment that describes it
        model, num_parameters = models[name], models[name].num_parameters()
        parameters = short(num_parameters) + (" " if model.vocab_size else "*")
        rows.append((name, parameters, str(model.num_layers), str(model.hidden_size), description))
        sizes = {key: getattr(model, key) for key in ("num_layers", "hidden_size", "vocab_size")}
        recipes.append(
            {"name": name, "description": description, "parameters": num_parameters, **sizes, "path": str(path)}
        )
    print_columns(rows, right=range(1, 4))
    print("* plus the token table, whose size depends on the corpus's vocabulary")
    print("\n`hornbook train NAME --data.train STORE` trains one; `--print-recipe` shows it.")
    return {"recipes": recipes}
