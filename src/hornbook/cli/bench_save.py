"""``hornbook bench save``: what a checkpoint costs beside a plain write, and what one in the background takes."""

import argparse
import tempfile
from pathlib import Path

from hornbook.cli.arguments import add_device_arguments, add_recipe_arguments, positive_integer
from hornbook.cli.bench_step import recipe_of
from hornbook.cli.table import print_columns, say


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand."""
    save = commands.add_parser(
        "save",
        help="time checkpoints",
        description="Time saves of a recipe's training beside plain writes of the same bytes, and steps beside saves.",
    )
    add_recipe_arguments(save)
    save.add_argument("--rounds", type=positive_integer, default=5, help="measured saves of each kind")
    save.add_argument(
        "--folder", type=Path, default=Path(), help="on the disk to measure; what is written is removed (default: here)"
    )
    add_device_arguments(save)
    save.set_defaults(handler=save_command)


def save_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Time saves, and print and return the numbers."""
    from dataclasses import asdict

    from hornbook.measure.save_speed import STEPS_BETWEEN, measure_saves
    from hornbook.parallel.device import prepare
    from hornbook.parallel.world import World
    from hornbook.storage.system import storage_errors
    from hornbook.track.units import size

    recipe = recipe_of(arguments)
    world = World(device=prepare(arguments.device, arguments.threads))
    with storage_errors("write", arguments.folder), tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        speed = measure_saves(recipe, world, Path(folder), rounds=arguments.rounds)
    rows = {
        "plain write": speed.plain_seconds,
        "synced write": speed.synced_seconds,
        "save": speed.save_seconds,
    }
    say(f"{recipe.name}: {recipe.num_parameters():,} parameters, {size(speed.num_bytes)} a checkpoint")
    print_columns(
        [(name, f"{1e3 * taken:,.1f} ms", f"{size(speed.num_bytes / taken)}/s") for name, taken in rows.items()],
        right=(1, 2),
    )
    say(
        f"hashes, manifest and removal of an old checkpoint: {speed.overhead:+.1%} of a synced write",
        f"in the background: {1e3 * speed.background_seconds:,.1f} ms a save, "
        f"{speed.background_share:.2%} of {STEPS_BETWEEN} steps of {1e3 * speed.step_seconds:,.1f} ms",
    )
    shares = {"overhead": speed.overhead, "background_share": speed.background_share}
    return {"recipe": recipe.name, "num_parameters": recipe.num_parameters(), **asdict(speed), **shares}
