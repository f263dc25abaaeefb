"""Measure speed on this machine: ``hornbook bench step demo --peer transformers`` times whole training steps in turn."""

import argparse
from typing import Any

from hornbook.cli.arguments import add_device_arguments, add_recipe_arguments, positive_integer

_PEERS = {"transformers": ("fp32", "bf16-mixed", "bf16")}
_DEFAULT_VOCAB_SIZE = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    step = commands.add_parser("step", help="time the training step of a recipe", description=__doc__)
    add_recipe_arguments(step)
    step.add_argument("--peer", choices=tuple(_PEERS), help="time this peer's step too, in turn, and give the ratio")
    step.add_argument("--rounds", type=positive_integer, default=5, metavar="N", help="measured steps of each (5)")
    add_device_arguments(step)
    step.set_defaults(handler=step_command)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Run the chosen subcommand."""
    result: dict[str, object] = arguments.handler(arguments)
    return result


def step_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Time hornbook's step, and the peer's in each of its precisions."""
    from dataclasses import asdict, replace

    from hornbook.config import load_recipe
    from hornbook.engine.device import choose_device, prepare
    from hornbook.measure.peers import transformers_step
    from hornbook.measure.throughput import hornbook_step, measure_steps
    from hornbook.parallel.world import World

    recipe = load_recipe(arguments.recipe, arguments.overrides, require_data=False).recipe
    if recipe.model.vocab_size is None:
        recipe = replace(recipe, model=replace(recipe.model, vocab_size=_DEFAULT_VOCAB_SIZE))
    device = choose_device(arguments.device)
    prepare(device, arguments.threads)
    world = World(device=device)
    contenders = {"hornbook": hornbook_step(recipe, world)}
    for precision in _PEERS.get(arguments.peer, ()):
        contenders[f"{arguments.peer} {precision}"] = transformers_step(recipe, world, precision=precision)
    speeds = measure_steps(contenders, recipe, world, rounds=arguments.rounds)
    result: dict[str, Any] = {"recipe": recipe.name, "contenders": {name: asdict(s) for name, s in speeds.items()}}
    for name, speed in speeds.items():
        print(f"{name:<28}{speed.tokens_per_second:>12,.0f} tokens/s{speed.step_seconds * 1e3:>12,.1f} ms a step")
    best = max((speed.tokens_per_second for name, speed in speeds.items() if name != "hornbook"), default=None)
    if best is not None:
        result["ratio"] = speeds["hornbook"].tokens_per_second / best
        print(f"{result['ratio']:.2f} times the best of {arguments.peer}")
    return result
