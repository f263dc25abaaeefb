"""``hornbook verify``: verify that a recipe resumes and scales with the same numbers on these machines.

hornbook verify resume my-recipe.toml --processes 2
hornbook verify topology gpt2-small --data.train corpora/mine --processes 4
torchrun --nproc-per-node 8 -m hornbook verify topology my-recipe.toml --json
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hornbook.cli.arguments import (
    Number,
    add_device_arguments,
    add_process_arguments,
    add_recipe_arguments,
    join_ranks,
    start_processes,
)
from hornbook.cli.table import print_columns, say
from hornbook.config.options import Bounds, Spec
from hornbook.errors import HornbookError, UserError
from hornbook.parallel import launched
from hornbook.parallel.launched import device_without_torch

if TYPE_CHECKING:
    from hornbook.config import Recipe
    from hornbook.parallel.world import World

_two_or_more = Number(Spec(type=int, bounds=Bounds(minimum=2)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    resume = commands.add_parser(
        "resume",
        help="compare an interrupted run with an uninterrupted one, bit for bit",
        description="Train a few steps twice, once interrupted and resumed, and compare bit for bit.",
    )
    resume.add_argument(
        "--output", type=Path, metavar="DIR", help="new folder for the two runs (default: runs/verify-resume-<name>)"
    )
    _add_common(resume)
    topology = commands.add_parser(
        "topology",
        help="compare the layouts of several ranks with one process",
        description="Train a few steps in one process and with each layout of the ranks, and compare.",
    )
    _add_common(topology)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=_two_or_more, default=6, help="training steps")
    add_device_arguments(parser)
    add_process_arguments(parser)
    add_recipe_arguments(parser)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Run the selected subcommand on all ranks; only the first one prints."""
    with launched.report_once():
        recipe = _recipe(arguments)
        device_without_torch(arguments.device)
        if arguments.subcommand == "topology" and (arguments.processes or launched.num_ranks()) == 1:
            raise UserError("nothing to compare with one process; add `processes=2` or more, or start it by torchrun")
    start_processes(arguments, recipe)
    world = join_ranks(arguments, recipe)
    command = _resume if arguments.subcommand == "resume" else _topology
    with world.session():
        return command(arguments, recipe, world)


def _recipe(arguments: argparse.Namespace) -> "Recipe":
    """Return the recipe; without data, with random tokens and, if it sets none, a vocabulary of 4,096."""
    from hornbook.config import load_recipe
    from hornbook.config.recipe_files import Leaf

    recipe = load_recipe(arguments.recipe, arguments.overrides, require_data=False).recipe
    if recipe.data.train:
        return recipe
    random: dict[tuple[str, str], object] = {("data", "synthetic"): True}
    if recipe.model.vocab_size is None:
        random["model", "vocab_size"] = 4096
    if recipe.training.epochs:
        random["training", "steps"] = arguments.steps
    given = {key: leaf for key, leaf in arguments.overrides.items() if key != ("training", "epochs")}
    said = {key: Leaf(value=value, source="without data.train") for key, value in random.items()}
    return load_recipe(arguments.recipe, {**given, **said}).recipe


def _resume(arguments: argparse.Namespace, recipe: "Recipe", world: "World") -> dict[str, object]:
    from hornbook.errors import StoppedBySignal, Terminated
    from hornbook.measure.verification import verify_resume
    from hornbook.storage import remove_tree

    folder = arguments.output or Path("runs") / f"verify-resume-{recipe.name}"
    if world.any(world.is_first and folder.exists()):
        raise world.reported_by(0, UserError(f"{folder} exists: remove it, or choose another --output"))
    try:
        rows = verify_resume(recipe, world, folder, num_steps=arguments.steps)
    except (KeyboardInterrupt, StoppedBySignal, Terminated) as stop:
        if world.is_first:
            remove_tree(folder)
        if isinstance(stop, StoppedBySignal):  # its message resumes a run that is of no use alone
            line = f"{str(stop).partition(';')[0]}; run the same command again"
            raise world.reported_by(0, StoppedBySignal(line)) from None
        raise
    different = [row.what for row in rows if row.different]
    if world.is_first:
        cells = [(row.what, f"{row.compared:,}", f"{row.different:,}") for row in rows]
        print_columns([("", "compared", "different"), *cells], right=(1, 2))
    if world.any(bool(different)):
        line = f"the resumed run differs from the uninterrupted one in {', '.join(different)}; both are in {folder}"
        raise world.reported_by(0, HornbookError(line))
    if world.is_first:
        remove_tree(folder)
    return {"ranks": world.size, "steps": arguments.steps, "equal": True, "rows": [asdict(row) for row in rows]}


def _topology(arguments: argparse.Namespace, recipe: "Recipe", world: "World") -> dict[str, object]:
    from hornbook.measure.verification import layouts_of, verify_topology

    layouts, misfits = layouts_of(recipe, world.size)
    rows, refused = verify_topology(recipe, world, layouts, num_steps=arguments.steps)
    skipped = misfits | refused
    if world.is_first:
        cells = [(row.layout, f"{row.gradients:.1e}", f"{row.losses:.1e}") for row in rows]
        print_columns([("layout", "gradients", "losses"), *cells], right=(1, 2))
        for layout, why in skipped.items():
            say(f"skipped {layout}: {why}")
    if not rows:
        raise world.reported_by(0, UserError("nothing was compared: no layout fits the recipe and its ranks"))
    listed = [{"layout": layout, "why": why} for layout, why in skipped.items()]
    return {
        "ranks": world.size,
        "steps": arguments.steps,
        "layouts": [asdict(row) for row in rows],
        "skipped": listed,
    }
