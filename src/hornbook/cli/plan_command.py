"""``hornbook plan RECIPE``: predict memory, time and cost of a training.

hornbook plan gpt2-xl --devices 8
gpt2-xl on 8 x NVIDIA H100 SXM, 80.0 GiB each: 1,557,611,200 parameters, activations bf16
...
It fits: 29.6 GiB of 80.0 GiB on the fullest rank; micro-batches of up to 16 sequences would.

The prediction needs no hardware, no data and no torch; if the recipe names token stores, it reads their vocabulary and
size. ``--check`` compares it with measurements of two real steps.
"""

import argparse
import math
import re
from typing import TYPE_CHECKING

from hornbook.cli.arguments import (
    add_process_arguments,
    add_recipe_arguments,
    join_ranks,
    positive_fraction,
    positive_number,
    read_size,
    start_processes,
)
from hornbook.cli.plan_table import describe_plan, print_layouts, print_plan
from hornbook.config.recipe_files import Leaf
from hornbook.errors import UserError
from hornbook.parallel import launched
from hornbook.track.units import short
from hornbook.wording import spelled

if TYPE_CHECKING:
    from hornbook.config import Recipe
    from hornbook.plan.planner import Machine

_REFUSED = 2
_VOCABULARY = 32_768  # of the recipe auto without data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--devices", metavar="N", help='number of ranks, one device each, or with their name, "8 x H100" (default: 1)'
    )
    parser.add_argument("--time", metavar="TIME", help="with the recipe auto: choose the model for a time, such as 12h")
    parser.add_argument("--device", metavar="NAME", help="h100, a100, v100, l4, 4090, cpu, … (default: h100)")
    parser.add_argument(
        "--memory", metavar="SIZE", help="memory per device, such as 80GiB (default: that of the hardware)"
    )
    parser.add_argument(
        "--efficiency",
        type=positive_fraction,
        metavar="SHARE",
        help="share of the peak rate that matrix products reach (default: depends on the device)",
    )
    parser.add_argument(
        "--price",
        type=positive_number,
        metavar="DOLLARS",
        help="price per device and hour (default: a rounded list price)",
    )
    parser.add_argument(
        "--search", action="store_true", help="search layouts and rank those that fit by predicted time"
    )
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="count the kernels of a step on the GPU, their bytes and FLOPs, by a run without values",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="run two training steps on this machine and compare them with the prediction",
    )
    parser.add_argument("--shrink", action="store_true", help="with --check: use a narrow model of two layers")
    add_process_arguments(parser)
    add_recipe_arguments(parser)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Print the plan; the result's exit code is 2 if the run does not fit in memory."""
    from hornbook.config import load_recipe

    with launched.report_once():
        _read_devices(arguments)
        _refuse_other_mode(arguments)
        if arguments.recipe == "auto":
            recipe, facts = _chosen(arguments)
        else:
            resolved = load_recipe(arguments.recipe, arguments.overrides, require_data=False)
            recipe, facts = planned_recipe(resolved.recipe)
        machine = None if arguments.check else _machine(arguments)
    if machine is None:
        return _check(arguments, recipe)
    if arguments.kernels:
        from hornbook.cli.plan_kernels import print_kernels

        return print_kernels(_of_one_process(recipe), machine.device)
    from hornbook.plan.planner import make_plan

    plan = make_plan(recipe, machine)
    print_plan(plan, facts)
    document = describe_plan(plan) | facts
    if arguments.search:
        from hornbook.plan.search import search_layouts

        layouts = search_layouts(recipe, machine)
        print()
        print_layouts(layouts)
        document["layouts"] = [
            {"options": spelled(layout.words), **describe_plan(layout.plan, with_advice=False)} for layout in layouts
        ]
    return {**document, "exit_code": 0 if plan.fits else _REFUSED}


def _read_devices(arguments: argparse.Namespace) -> None:
    """Replace ``--devices "8 x H100"`` by the number, and set ``--device``."""
    if arguments.devices is None:
        return
    match = re.fullmatch(r"\s*([\d_]+)\s*(?:[x×*]\s*(\S+)\s*)?", arguments.devices)
    if match is None or int(match[1].replace("_", "") or 0) < 1:
        raise UserError(f'--devices {arguments.devices}: expected a number such as 8, or "8 x H100"')
    if match[2]:
        from hornbook.plan.devices import device_of

        device_of(match[2], "devices")
        if arguments.device:
            raise UserError("--devices names the device already: remove --device")
    arguments.devices, arguments.device = int(match[1]), match[2] or arguments.device


def _chosen(arguments: argparse.Namespace) -> tuple["Recipe", dict[str, str]]:
    """Return the recipe that the law chooses for ``--time`` by predicted steps, and the reasons."""
    from dataclasses import replace

    from hornbook.config import load_recipe
    from hornbook.config.build import fit_ranks
    from hornbook.config.overrides import override_leaves
    from hornbook.config.recipe_files import merge
    from hornbook.plan import dial
    from hornbook.plan.planner import make_plan

    if arguments.time is None:
        raise UserError("auto needs a time to plan: add `--time 12h`")
    if arguments.check or arguments.kernels:
        raise UserError("auto with --check or --kernels is not possible: use the recipe of `hornbook train auto`")
    machine, seconds = _machine(arguments), dial.read_time(arguments.time)
    dial.refuse_contradictions(arguments.overrides, "time")
    length = load_recipe(dial.BASE, arguments.overrides, require_data=False).recipe.sequence_length

    def recipe_of(width: int, tokens: int) -> "Recipe":
        options = override_leaves(dial.options_of(width, tokens, length=length))
        tree = merge(options | {("", "name"): Leaf(value="auto", source="--time")}, arguments.overrides)
        resolved = load_recipe(dial.BASE, tree, require_data=False)
        return fit_ranks(resolved, machine.num_ranks).recipe

    base, facts = planned_recipe(recipe_of(1, 1 << 20))
    vocabulary, unique = base.model.vocab_size or _VOCABULARY, math.inf
    if base.data.train:
        from hornbook.corpora.store import open_store

        unique = sum(open_store(path, "train").num_tokens for path in base.data.train)

    def complete(width: int, tokens: int) -> "Recipe":
        recipe = recipe_of(width, tokens)
        return replace(recipe, model=replace(recipe.model, vocab_size=vocabulary))

    plans = {}
    for width in range(1, dial.MOST_WIDTH + 1):
        plan = make_plan(complete(width, max(1 << 23, dial.best_tokens(width, vocabulary))), machine, advises=False)
        if plan.fits:
            plans[width] = plan.speed.seconds / (plan.recipe.training.global_batch_size * plan.recipe.sequence_length)
    if not plans:
        raise UserError("not even the smallest model fits in memory: use a larger device")
    ranked = dial.choose(seconds, unique, plans.__getitem__, range(1, max(plans) + 1))
    best = ranked[0]
    near = sorted((other for other in ranked if abs(other.width - best.width) == 1), key=lambda other: other.width)
    shares = {dial.shape_of(other.width): other.loss / best.loss - 1 for other in near}
    told = "; ".join(f"{shape}: {share:+.2%} of the law's loss" for shape, share in shares.items())
    sizes = (
        f"measured up to {short(dial.LAW.largest)} weights in blocks and {short(dial.LAW.longest)} tokens, these are "
        f"{short(dial.num_weights(best.width))} and {short(best.tokens)}"
    )
    is_small = best.epochs > dial.MOST_EPOCHS - 0.01
    ends = f", {dial.MOST_EPOCHS} epochs, after which more stop helping" if is_small else ""
    facts = {"data": facts.get("data", "unknown, taken as endless")} | {
        "chosen": f"{dial.shape_of(best.width)}, {best.tokens:,} tokens in {arguments.time}{ends}; {told}",
        **({"law": f"extrapolated: {sizes}, so take the size as a start"} if best.extrapolates else {}),
    }
    return complete(best.width, best.tokens), facts


def _refuse_other_mode(arguments: argparse.Namespace) -> None:
    """Raise UserError for options of predictions with ``--check``, and options of ``--check`` without it."""
    if arguments.time is not None and arguments.recipe != "auto":
        raise UserError("--time applies only to the recipe auto: `hornbook plan auto --time 12h`")
    of_plan = ("devices", "device", "memory", "efficiency", "price", "search", "kernels")
    unused = [name for name in ("devices", "memory", "efficiency", "price", "search") if getattr(arguments, name)]
    if arguments.kernels and unused:
        raise UserError(f"--{unused[0]} does not apply to --kernels, a step of one process: remove it")
    given = [name for name in of_plan if getattr(arguments, name)]
    if arguments.check and given:
        raise UserError(
            f"--{given[0]} applies to predictions, but --check measures on this machine: remove one of them"
        )
    if not arguments.check and (arguments.shrink or arguments.processes or arguments.max_restarts):
        name = "--shrink" if arguments.shrink else "--processes" if arguments.processes else "--max-restarts"
        raise UserError(f"{name} applies only with --check; add --check, or use --devices N")


def planned_recipe(recipe: "Recipe") -> tuple["Recipe", dict[str, str]]:
    """Return the recipe with what its token stores say or, without them, its published model's vocabulary.

    Returns:
        The recipe, and what was read and assumed, in words.

    Raises:
        UserError, DataError: a store is missing or malformed.
    """
    from hornbook.config import LabelledConfig
    from hornbook.plan.stand_ins import assumptions, with_vocabulary

    facts: dict[str, str] = {}
    if recipe.data.train and not isinstance(recipe.objective, LabelledConfig):
        from hornbook.run.planning import read_data

        recipe, facts = read_data(recipe)
    if assumed := "; ".join(assumptions(recipe)):
        facts["assumed"] = spelled(assumed)
    return with_vocabulary(recipe), facts


def _of_one_process(recipe: "Recipe") -> "Recipe":
    """Return the recipe of one process, with synthetic data."""
    from dataclasses import replace

    from hornbook.config.parallel import ParallelConfig

    data = replace(recipe.data, synthetic=True, train=())
    return replace(recipe, data=data, parallel=ParallelConfig())


def _machine(arguments: argparse.Namespace) -> "Machine":
    from hornbook.plan.devices import device_of
    from hornbook.plan.planner import Machine

    return Machine(
        device=device_of(arguments.device or "h100"),
        num_ranks=arguments.devices or 1,
        memory=None if arguments.memory is None else read_size("--memory", arguments.memory),
        efficiency=arguments.efficiency,
        price=arguments.price,
    )


def _check(arguments: argparse.Namespace, recipe: "Recipe") -> dict[str, object]:
    """Run steps on all ranks, and print predicted and measured values."""
    from hornbook.plan.planner import refuse_unplannable

    with launched.report_once():
        num_ranks = arguments.processes or launched.num_ranks()
        if arguments.shrink:
            from hornbook.plan.stand_ins import shrunk

            recipe = shrunk(recipe, num_ranks)
        refuse_unplannable(recipe, num_ranks)
    arguments.device, arguments.threads = "auto", None
    start_processes(arguments, recipe)
    from hornbook.measure.memory_check import TOLERANCES, check_steps

    world = join_ranks(arguments, recipe)
    with world.session():
        found = check_steps(recipe, world)
        rows = world.gather([float(found.measured), found.predicted.peak])
    if world.is_first:
        _print_check(rows)
        print(
            f"\nstep      {found.predicted_seconds:.3g} s predicted, {found.step_seconds:.3g} s measured: "
            f"{found.predicted_seconds / found.step_seconds - 1.0:+.0%}\n"
            "          by a product measured here, and the device's usual share of its rate"
        )
    errors = [predicted / measured - 1.0 for measured, predicted in rows]
    is_close = max(map(abs, errors)) <= TOLERANCES[recipe.memory.execution]
    ranks = [
        {"rank": rank, "measured": measured, "predicted": predicted, "error": error}
        for rank, ((measured, predicted), error) in enumerate(zip(rows, errors, strict=True))
    ]
    step = {"measured": found.step_seconds, "predicted": found.predicted_seconds}
    result = {"recipe": recipe.name, "device": str(world.device), "ranks": ranks, "step_seconds": step}
    return {**result, "exit_code": 0 if is_close else 1}


def _print_check(rows: list[list[float]]) -> None:
    from hornbook.cli.table import print_columns
    from hornbook.track.units import size

    lines = [("rank", "predicted", "measured", "error")]
    for rank, (measured, predicted) in enumerate(rows):
        lines.append((str(rank), size(predicted), size(measured), f"{predicted / measured - 1.0:+.2%}"))
    print_columns(lines, right=range(4))
