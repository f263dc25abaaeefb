"""``hornbook bench step``: time whole training steps, on one process, compared with a peer, or on several ranks."""

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from hornbook.cli.arguments import (
    add_device_arguments,
    add_process_arguments,
    add_recipe_arguments,
    join_ranks,
    positive_integer,
    start_processes,
    with_some_vocabulary,
)
from hornbook.cli.table import print_columns
from hornbook.errors import UserError
from hornbook.parallel import launched

if TYPE_CHECKING:
    from hornbook.config import Recipe
    from hornbook.measure.scaling import Scaling
    from hornbook.measure.throughput import Step, Throughput
    from hornbook.parallel.world import World

PEERS = {"transformers": ("fp32", "bf16-mixed", "bf16")}
"""The precisions of each peer library."""
_MOST_OPERATORS = 25


def add_arguments(commands: "argparse._SubParsersAction[Any]") -> None:
    """Declare the subcommand."""
    step = commands.add_parser("step", help="time training steps", description="Time whole training steps of a recipe.")
    add_recipe_arguments(step)
    step.add_argument("--peer", choices=tuple(PEERS), help="also time this library, alternating, and print the ratio")
    step.add_argument("--rounds", type=positive_integer, default=5, help="measured steps of each")
    step.add_argument(
        "--kernels",
        choices=("torch", "native"),
        nargs="+",
        default=[],
        help="also time the step with these operators (precision.kernels), alternating",
    )
    step.add_argument(
        "--peer-processes",
        choices=("own", "shared", "both"),
        default="both",
        help="time the peer in its own processes with PyTorch's allocator (own), in this process (shared), or both",
    )
    step.add_argument("--operators", action="store_true", help="also print the time of a step by operator")
    step.add_argument("--neighbor", action="store_true", help="also time the step with a busy process on each core")
    step.add_argument(
        "--skip-alone",
        action="store_true",
        help="with several ranks: skip the timing of a single process, whose memory may be too small",
    )
    add_device_arguments(step)
    add_process_arguments(step)
    step.set_defaults(handler=step_command)


def step_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Time a step on one process or several ranks, or compared with the peer's in each of its precisions."""
    with launched.report_once():
        recipe = recipe_of(arguments)
        is_scaling = launched.is_rank() or arguments.processes is not None
        for name in ("peer", "kernels", "operators", "neighbor"):
            if is_scaling and getattr(arguments, name):
                raise UserError(
                    f"--{name} is timed in one process: remove it, or start hornbook without torchrun or --processes"
                )
        if arguments.skip_alone and not is_scaling:
            raise UserError("--skip-alone applies only to several ranks: remove it, or add --processes")
    start_processes(arguments, recipe)
    return _time_ranks(arguments, recipe) if is_scaling else _time_contenders(arguments, recipe)


def _time_ranks(arguments: argparse.Namespace, recipe: "Recipe") -> dict[str, object]:
    from dataclasses import asdict

    from hornbook.measure.scaling import measure_scaling
    from hornbook.measure.throughput import compare_with_product, matrix_product, measure_steps

    world = join_ranks(arguments, recipe)
    with world.session():
        scaling = measure_scaling(recipe, world, rounds=arguments.rounds, with_alone=not arguments.skip_alone)
        used = {}
        if recipe.flops_per_token(1.0) is not None:
            product = matrix_product(recipe, world)  # on all ranks at once, as in a step, and by the same clock
            seconds = measure_steps({"product": product}, world, rounds=arguments.rounds)["product"].step_seconds
            rates = world.gather([product.flops / seconds])
            used = compare_with_product(recipe, scaling.together, sum(row[0] for row in rates))
    if world.is_first:
        _print_scaling(scaling, recipe)
        _print_utilization(used)
        print(f"kernels {_operators(recipe)}")
    return {**_facts(recipe), "kernels": _operators(recipe), "num_ranks": world.size, **asdict(scaling), **used}


def _print_scaling(scaling: "Scaling", recipe: "Recipe") -> None:
    from hornbook.track.units import size

    print(_title(recipe))
    num_ranks = len(scaling.ranks)
    for name, speed in {
        f"{num_ranks} ranks": scaling.together,
        f"one, 1/{num_ranks} of the batch": scaling.alone,
    }.items():
        if speed is not None:
            print(_speed_line(name, speed))
    if scaling.efficiency is not None:
        print(f"scaling efficiency {scaling.efficiency:.1%}")
    rows = [("rank", "operation", "sent a step", "by formula", "waiting")]
    for rank, found in enumerate(scaling.ranks):
        first = (str(rank), f"{found.waiting:.1%}")
        for name in sorted({*found.sent, *found.formula}):
            label, waiting = first
            numbers = (size(found.sent.get(name)), size(found.formula.get(name)))
            rows.append((label, name.replace("_", "-"), *numbers, waiting))
            first = ("", "")
    print_columns(rows, right=(2, 3, 4))


def _time_contenders(arguments: argparse.Namespace, recipe: "Recipe") -> dict[str, object]:
    from dataclasses import asdict, replace

    from hornbook.measure.throughput import compare_with_product, hornbook_step, matrix_product, measure_steps
    from hornbook.parallel.device import prepare
    from hornbook.parallel.world import World

    world = World(device=prepare(arguments.device, arguments.threads))
    contenders = {"hornbook": hornbook_step(recipe, world)}
    kernels = {"hornbook": _operators(recipe)}
    for choice in arguments.kernels:
        other = replace(recipe, precision=replace(recipe.precision, kernels=choice))
        contenders[f"hornbook {choice}"] = hornbook_step(other, world)
        kernels[f"hornbook {choice}"] = _operators(recipe)
    product = matrix_product(recipe, world) if recipe.flops_per_token(1.0) is not None else None
    if product:
        contenders["matmul"] = product
    with ExitStack() as stack:
        contenders |= _peers(arguments, recipe, world, stack)
        speeds = measure_steps(contenders, world, rounds=arguments.rounds)
    measured = speeds.pop("matmul", None)
    timed = {name: asdict(speed) for name, speed in speeds.items()}
    result: dict[str, Any] = {**_facts(recipe), "kernels": kernels, "contenders": timed}
    if product and measured:
        result |= compare_with_product(recipe, speeds["hornbook"], product.flops / measured.step_seconds)
    print(_title(recipe))
    for name, speed in speeds.items():
        print(_speed_line(name, speed, kernels.get(name)))
    _print_utilization(result)
    best = max((speed.tokens_per_second for name, speed in speeds.items() if name not in kernels), default=None)
    if best is not None:
        result["ratio"] = speeds["hornbook"].tokens_per_second / best
        print(f"{result['ratio']:.2f} times the speed of the best {arguments.peer}")
    return {**result, **_print_details(arguments, contenders["hornbook"], world)}


def _peers(arguments: argparse.Namespace, recipe: "Recipe", world: "World", stack: ExitStack) -> dict[str, "Step"]:
    """Return the peer's steps by name, marked if they run in their own processes, which end with ``stack``."""
    from hornbook.peers import transformers_step, transformers_step_apart

    steps, ways = dict[str, "Step"](), arguments.peer_processes
    for precision in PEERS.get(arguments.peer, ()):
        name = f"{arguments.peer} {precision}"
        if ways != "own":
            steps[name] = transformers_step(recipe, world, precision=precision)
        if ways != "shared":
            apart = transformers_step_apart(recipe, world, precision=precision)
            steps[f"{name}, own process"] = stack.enter_context(apart)
    return steps


def _print_details(arguments: argparse.Namespace, step: "Step", world: "World") -> dict[str, Any]:
    """Print and return the measurements of ``--operators`` and ``--neighbor``."""
    from dataclasses import asdict

    from hornbook.measure.module_times import neighbor_cost, operators_of

    found: dict[str, Any] = {}
    if arguments.operators:
        operators = operators_of(step, world.device)
        total = sum(row.seconds for row in operators)
        found["operators"] = [row._asdict() | {"share": row.seconds / total} for row in operators]
        rows = [("operator", "calls", "ms", "share")]
        rows += [
            (row.name, f"{row.calls:g}", f"{1e3 * row.seconds:.2f}", f"{row.seconds / total:.1%}") for row in operators
        ]
        print_columns(rows[:_MOST_OPERATORS], right=(1, 2, 3))
    if arguments.neighbor:
        cost = neighbor_cost(step)
        found["neighbor"] = asdict(cost)
        print(
            f"with {cost.neighbors} busy processes: {cost.beside:,.0f} tokens per second of processor "
            f"time, alone {cost.alone:,.0f}; {cost.loss:.0%} lost beyond the share of the processor"
        )
    return found


def _print_utilization(found: Mapping[str, Any]) -> None:
    if "tflops" in found:
        print(
            f"{found['tflops']:.3g} TFLOP/s, {found['tflops_ratio']:.1%} of the {found['matmul_tflops']:.3g} "
            "TFLOP/s of a plain product of the feed-forward's shape"
        )


def _facts(recipe: "Recipe") -> dict[str, object]:
    model = recipe.model
    return {"recipe": recipe.name, "num_parameters": recipe.num_parameters(), "vocab_size": model.vocab_size}


def _title(recipe: "Recipe") -> str:
    model = recipe.model
    return f"{model.family}, {recipe.num_parameters():,} parameters, vocabulary {model.vocab_size:,}"


def _operators(recipe: "Recipe") -> str:
    """Return whose operators compute a step: without those of generation, and of dropout if nothing is dropped."""
    from dataclasses import fields, replace

    from hornbook.ops.native.kernels import in_use

    dropouts = {field.name for field in fields(recipe.model) if field.name.endswith("dropout")} - {"attention_dropout"}
    idle = ("token_block",) if any(getattr(recipe.model, name) for name in dropouts) else ("token_block", "dropout")
    kernels = in_use()
    return str(replace(kernels, forms={name: isa for name, isa in kernels.forms.items() if not name.startswith(idle)}))


def _speed_line(name: str, speed: "Throughput", kernels: str | None = None) -> str:
    line = f"{name:<28}{speed.tokens_per_second:>12,.0f} tokens/s{speed.step_seconds * 1e3:>12,.1f} ms per step"
    return line if kernels is None else f"{line}  {kernels}"


def recipe_of(arguments: argparse.Namespace) -> "Recipe":
    """Return the recipe, with a vocabulary of 4,096 if it sets none; raise UserError if it names data."""
    from hornbook.config import load_recipe

    recipe = load_recipe(arguments.recipe, arguments.overrides, require_data=False).recipe
    if recipe.data.train:
        raise UserError(
            "the benchmark uses random tokens: remove data.train (of a run: --data.train none), and set the "
            "vocabulary size with --model.vocab-size"
        )
    return with_some_vocabulary(recipe)
