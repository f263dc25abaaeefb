"""Trains a model: ``hornbook train gpt2-small --data.train corpora/mine --optimizer.learning-rate 3e-4``.

The run goes into a folder; the same command on that folder goes on where it stopped. ``--print-recipe`` shows what
would be trained and where each value comes from, as TOML that is a recipe itself.
"""

import argparse
from pathlib import Path

from hornbook.cli.arguments import add_device_arguments, add_process_arguments, add_recipe_arguments, start_processes
from hornbook.parallel.one_voice import told_once


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--output", type=Path, metavar="DIR", help="run folder (default: runs/<recipe name>)")
    parser.add_argument(
        "--init-from", metavar="SOURCE", help="initialize the weights from a run, a checkpoint or a Hugging Face folder"
    )
    parser.add_argument(
        "--init-optimizer", choices=("fresh", "keep"), help="with --init-from: the optimizer state (default: fresh)"
    )
    add_device_arguments(parser)
    add_process_arguments(parser)
    parser.add_argument(
        "--print-recipe", action="store_true", help="print the resolved recipe with the source of each value, and exit"
    )
    add_recipe_arguments(parser)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Train, or print what would be trained."""
    from hornbook.config import load_recipe, recipe_to_dict, recipe_to_toml
    from hornbook.errors import UserError

    if arguments.init_optimizer and not arguments.init_from:
        raise UserError("--init-optimizer applies only with --init-from; add --init-from or remove it")
    looking = arguments.print_recipe
    with told_once():
        resolved = load_recipe(arguments.recipe, arguments.overrides, require_data=not looking)
    if looking:
        print(recipe_to_toml(resolved.recipe, resolved.sources), end="")
        return {"recipe": recipe_to_dict(resolved.recipe), "sources": resolved.sources}
    start_processes(arguments, resolved.recipe)
    from hornbook.run.signals import leave_cleanly

    with leave_cleanly():
        from hornbook.run.initial_weights import InitFrom
        from hornbook.run.launch import train

        source, keep = arguments.init_from, arguments.init_optimizer == "keep"
        return train(
            resolved,
            output=arguments.output,
            device=arguments.device,
            threads=arguments.threads,
            init_from=InitFrom(source=source, keep_optimizer=keep) if source else None,
        )
