"""Trains a model: ``hornbook train gpt2-small --data.train corpora/mine --optimizer.learning-rate 3e-4``.

The run goes into a folder; the same command on that folder goes on where it stopped. ``--print-recipe`` shows what
would be trained and where each value comes from, as TOML that is a recipe itself.
"""

import argparse
from pathlib import Path

from hornbook.cli.arguments import add_device_arguments, add_recipe_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="the run's folder (default: runs/<name of the recipe>)"
    )
    add_device_arguments(parser)
    parser.add_argument(
        "--print-recipe", action="store_true", help="print the resolved recipe with the source of each value, and stop"
    )
    add_recipe_arguments(parser)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Train, or print what would be trained."""
    from hornbook.config import load_recipe, recipe_to_dict, recipe_to_toml

    looking = arguments.print_recipe
    resolved = load_recipe(arguments.recipe, arguments.overrides, require_data=not looking)
    if looking:
        print(recipe_to_toml(resolved.recipe, resolved.sources), end="")
        return {"recipe": recipe_to_dict(resolved.recipe), "sources": resolved.sources}
    from hornbook.engine.launch import train

    return train(resolved, output=arguments.output, device=arguments.device, threads=arguments.threads)
