"""Trains a model: ``hornbook train gpt2-small --data.train corpora/mine --optimizer.learning-rate 3e-4``.

The run goes into a folder; the same command on that folder goes on where it stopped. ``--print-recipe`` shows what
would be trained and where each value comes from, as TOML that is a recipe itself.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hornbook.cli.arguments import add_device_arguments, add_recipe_arguments

if TYPE_CHECKING:
    from hornbook.run.initial_weights import InitFrom


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--print-recipe", action="store_true", help="print the resolved recipe with the source of each value, and exit"
    )
    add_run_arguments(parser)


def add_run_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declare what describes a run: its recipe, folder, initial weights and device; ``required`` concerns RECIPE."""
    parser.add_argument("--output", type=Path, metavar="DIR", help="run folder (default: runs/<recipe name>)")
    parser.add_argument(
        "--init-from", metavar="SOURCE", help="initialize the weights from a run, a checkpoint or a Hugging Face folder"
    )
    parser.add_argument(
        "--init-optimizer", choices=("fresh", "keep"), help="with --init-from: the optimizer state (default: fresh)"
    )
    add_device_arguments(parser)
    add_recipe_arguments(parser, required=required)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Train, or print what would be trained."""
    from hornbook.config import load_recipe, recipe_to_dict, recipe_to_toml

    refuse_lone_init_optimizer(arguments)
    looking = arguments.print_recipe
    resolved = load_recipe(arguments.recipe, arguments.overrides, require_data=not looking)
    if looking:
        print(recipe_to_toml(resolved.recipe, resolved.sources), end="")
        return {"recipe": recipe_to_dict(resolved.recipe), "sources": resolved.sources}
    from hornbook.run.signals import leave_cleanly

    with leave_cleanly():
        from hornbook.run.launch import train

        return train(
            resolved,
            output=arguments.output,
            device=arguments.device,
            threads=arguments.threads,
            init_from=init_from(arguments),
        )


def refuse_lone_init_optimizer(arguments: argparse.Namespace) -> None:
    """Refuse ``--init-optimizer`` without ``--init-from``, by UserError."""
    from hornbook.errors import UserError

    if arguments.init_optimizer and not arguments.init_from:
        raise UserError("--init-optimizer applies only with --init-from; add --init-from or remove it")


def init_from(arguments: argparse.Namespace) -> "InitFrom | None":
    """Return the weights that a run is to start from; None to draw them from the seed."""
    from hornbook.run.initial_weights import InitFrom

    source, keep = arguments.init_from, arguments.init_optimizer == "keep"
    return InitFrom(source=source, keep_optimizer=keep) if source else None
