"""``hornbook train``: train a model from a recipe, or resume an interrupted run.

hornbook train gpt2-small --data.train corpora/mine --optimizer.learning-rate 3e-4

``hornbook train FOLDER``, or the same command again, resumes the run. ``--print-recipe`` prints the resolved recipe and
the source of each value, as TOML that is a valid recipe. ``--dry-run`` prints shapes, parameters, layout and plan of
the run; the model is built on the meta device, so it takes no memory.
"""

import argparse
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hornbook.cli.arguments import (
    add_device_arguments,
    add_process_arguments,
    add_recipe_arguments,
    start_processes,
)
from hornbook.parallel import launched
from hornbook.parallel.launched import collector_paused, report_once
from hornbook.parallel.launched import num_ranks as num_launched

if TYPE_CHECKING:
    from hornbook.config import Recipe, Resolved
    from hornbook.run.initial_weights import InitFrom

_REFUSED = 2
"""Exit code of a dry run that does not fit in memory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--print-recipe", action="store_true", help="print the resolved recipe with the source of each value, and exit"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help=(
            "print shapes, parameters, layout and plan of the run on this machine, and exit without "
            "allocating the model"
        ),
    )
    add_process_arguments(parser)
    dials = parser.add_argument_group("for RECIPE auto, which chooses model and length, one of")
    dials.add_argument("--time", metavar="TIME", help="duration, such as 30m or 1h30m")
    dials.add_argument("--params", metavar="N", help="parameters at most, such as 30M")
    dials.add_argument("--tokens", metavar="N", help="tokens to train on, such as 100M")
    dials.add_argument("--flops", metavar="N", help="FLOPs of the training, such as 1e15")
    dials.add_argument("--memory", metavar="SIZE", help="memory of the training at most, such as 8GB")
    add_run_arguments(parser)


def add_run_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declare the arguments of a run: recipe, folder, initial weights and device; ``required`` refers to RECIPE."""
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="run folder (default: RECIPE if it is a run, else runs/<name>)"
    )
    parser.add_argument(
        "--init-from",
        metavar="SOURCE",
        help="start with the weights and architecture of a run, a checkpoint or a Hugging Face folder",
    )
    parser.add_argument(
        "--init-optimizer",
        choices=("fresh", "keep"),
        help="with --init-from: start with a fresh optimizer state, or keep that of the source (default: fresh)",
    )
    parser.add_argument(
        "--allow-learning-rate-change",
        action="store_true",
        help="resume with another length even if the learning rate jumps",
    )
    add_device_arguments(parser)
    add_recipe_arguments(parser, required=required)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Train, or print what would be trained."""
    from hornbook.config import recipe_to_dict, recipe_to_toml
    from hornbook.run.early import refuse_early

    looking = arguments.print_recipe or arguments.dry_run
    with report_once():
        resolved, init_from = _resolve(arguments, looking)
        if not looking:
            num_ranks, output = arguments.processes or num_launched(), arguments.output or resolved.output
            refuse_early(resolved.recipe, output, arguments.device, num_ranks)
    if arguments.dry_run:
        sys.stderr.writelines(f"hornbook: {note}\n" for note in resolved.notes)
        return _dry_run(resolved.recipe, arguments)
    if looking:
        print("".join(f"# {note}\n" for note in resolved.notes), end="")
        print(recipe_to_toml(resolved.recipe, resolved.sources), end="")
        document = recipe_to_dict(resolved.recipe)
        return {"recipe": document, "sources": resolved.sources, "notes": list(resolved.notes)}
    start_processes(arguments, resolved.recipe)
    with collector_paused():
        from hornbook.run.launch import train

    return train(
        resolved,
        output=arguments.output,
        device=arguments.device,
        threads=arguments.threads,
        init_from=init_from,
        allow_rate_change=arguments.allow_learning_rate_change,
    )


def _resolve(arguments: argparse.Namespace, looking: bool) -> "tuple[Resolved, InitFrom | None]":
    """Return what `resolve_run` does; the recipe auto is chosen first."""
    from hornbook.errors import UserError
    from hornbook.plan.dial import DIALS, Dial

    given = {name: getattr(arguments, name) for name in DIALS}
    if arguments.recipe != "auto":
        if used := [name for name, value in given.items() if value is not None]:
            raise UserError(f"--{used[0]} applies only to the recipe auto: `hornbook train auto --{used[0]} ...`")
        return resolve_run(arguments, require_data=not looking)
    dial = Dial.of(given)
    if arguments.init_from:
        raise UserError("auto chooses the architecture, but --init-from sets it: remove it, or train its recipe")
    from hornbook.config.build import fit_ranks
    from hornbook.measure.dial import auto_recipe, prepared_choice
    from hornbook.parallel.device import prepare

    num_ranks = arguments.processes or num_launched()
    if launched.is_rank() and num_launched() > 1:
        resolved = prepared_choice(dial, arguments.overrides, arguments.output)
    else:
        device = prepare(arguments.device, arguments.threads)
        resolved = auto_recipe(
            dial, arguments.overrides, arguments.output, device, num_ranks=num_ranks, writes=not looking
        )
    return fit_ranks(resolved, num_ranks), None


def resolve_run(arguments: argparse.Namespace, *, require_data: bool) -> "tuple[Resolved, InitFrom | None]":
    """Return the recipe of a run and the source of its initial weights; None to draw them from the seed.

    Args:
        arguments: those of `add_run_arguments`.
        require_data: whether to reject a recipe without training data.

    Raises:
        UserError: see `hornbook.run.start_recipe`; or an option requires another one.
    """
    from hornbook.config import load_recipe
    from hornbook.config.build import fit_ranks
    from hornbook.errors import UserError

    num_ranks = arguments.processes or num_launched()
    if not arguments.init_from:
        if arguments.init_optimizer:
            raise UserError("--init-optimizer applies only with --init-from; add --init-from or remove it")
        resolved = load_recipe(arguments.recipe, arguments.overrides, require_data=require_data)
        return fit_ranks(resolved, num_ranks), None
    from hornbook.checkpoint.load import require_source

    require_source(arguments.init_from)
    from hornbook.run.initial_weights import InitFrom
    from hornbook.run.start_recipe import start_recipe

    init_from = InitFrom(source=arguments.init_from, keep_optimizer=arguments.init_optimizer == "keep")
    resolved = start_recipe(
        arguments.recipe,
        arguments.overrides,
        output=arguments.output,
        init_from=init_from,
        require_data=require_data,
    )
    return fit_ranks(resolved, num_ranks), init_from


def _dry_run(recipe: "Recipe", arguments: argparse.Namespace) -> dict[str, object]:
    """Print what would be trained; the result's exit code is 2 if it does not fit in memory.

    Args:
        recipe: resolved; the default vocabulary is that of its data, or of the published model.
        arguments: of ``hornbook train``.
    """
    from hornbook.cli.plan_command import planned_recipe
    from hornbook.cli.plan_table import describe_plan, print_plan
    from hornbook.cli.table import print_columns
    from hornbook.parallel.device import choose_device
    from hornbook.plan.planner import refuse_unplannable
    from hornbook.run.initial_weights import outline
    from hornbook.run.planning import plan_here

    recipe, facts = planned_recipe(recipe)
    num_ranks = arguments.processes or num_launched()
    refuse_unplannable(recipe, num_ranks)
    shapes = {name: shard.shape for name, shard in outline(recipe).home.tensors()["model"].items()}
    plan = plan_here(recipe, num_ranks, choose_device(arguments.device), timed=True)
    if launched.rank() == 0:
        print_columns([*_rows(shapes)], right=(2, 3))
        print()
        print_plan(plan, facts)
    listed = {name: list(shape) for name, shape in shapes.items()}
    return {"shapes": listed, **describe_plan(plan), **facts, "exit_code": 0 if plan.fits else _REFUSED}


def _rows(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, str, str, str]]:
    """Yield rows of parameters; one row for those of the same name and shape in several blocks."""
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for name, shape in shapes.items():
        block = re.match(r"blocks\.(\d+)\.", name)
        key = re.sub(r"^blocks\.\d+\.", "blocks.*.", name), tuple(shape)
        groups.setdefault(key, []).append(int(block[1]) if block else 0)
    yield "parameter", "shape", "blocks", "numbers"
    for (name, shape), members in groups.items():
        count = f"{len(members):,}" if name.startswith("blocks.") else ""
        yield name, " x ".join(f"{size:,}" for size in shape), count, f"{math.prod(shape) * len(members):,}"
