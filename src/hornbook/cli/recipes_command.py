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

    bundled = bundled_recipes().values()
    models = {recipe.name: load_recipe(recipe.name, require_data=False).recipe.model for recipe in bundled}
    ordered = sorted(bundled, key=lambda recipe: models[recipe.name].num_parameters())
    rows = [("name", "parameters ", "layers", "hidden", "")]
    for recipe in ordered:
        model = models[recipe.name]
        parameters = short(model.num_parameters()) + (" " if model.vocab_size else "*")
        rows.append((recipe.name, parameters, str(model.num_layers), str(model.hidden_size), recipe.description))
    print_columns(rows, right=range(1, 4))
    print("* plus the token table, whose size depends on the corpus's vocabulary")
    print("\n`hornbook train NAME --data.train STORE` trains one; `--print-recipe` shows it.")
    return {
        "recipes": [
            {
                "name": recipe.name,
                "description": recipe.description,
                "parameters": models[recipe.name].num_parameters(),
                "num_layers": models[recipe.name].num_layers,
                "hidden_size": models[recipe.name].hidden_size,
                "vocab_size": models[recipe.name].vocab_size,
                "path": str(recipe.path),
            }
            for recipe in ordered
        ]
    }
