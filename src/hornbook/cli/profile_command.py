"""``hornbook profile``: write the time and memory of training steps as a page, or compare two profiles.

hornbook profile demo
hornbook profile gpt2-small --processes 2 --parallel.pipeline-parallel 2 --output profiles/pipeline
hornbook profile compare profiles/demo profiles/pipeline
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hornbook.cli.arguments import (
    add_device_arguments,
    add_process_arguments,
    add_recipe_arguments,
    join_ranks,
    positive_integer,
    start_processes,
    with_some_vocabulary,
)
from hornbook.cli.table import print_columns, say
from hornbook.errors import UserError
from hornbook.parallel import launched

if TYPE_CHECKING:
    from hornbook.config import Recipe
    from hornbook.track.profile import Profile

_COMPARE = "compare"
_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--steps", type=positive_integer, default=3, help="timed steps, and as many under PyTorch's profiler"
    )
    add_recipe_arguments(parser)
    parser.usage = (
        f"{parser.prog} [options] RECIPE [--section.key VALUE ...]\n       {parser.prog} [options] {_COMPARE} A B"
    )
    parser.add_argument(
        "profiles", nargs="*", type=Path, metavar="PROFILE", help=f"folders of two profiles, if RECIPE is {_COMPARE}"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="folder for the page, JSON and traces (default: profiles/NAME)"
    )
    add_device_arguments(parser)
    add_process_arguments(parser)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Profile a recipe, or compare two profiles."""
    return _compare(arguments) if arguments.recipe == _COMPARE else _profile(arguments)


def _profile(arguments: argparse.Namespace) -> dict[str, object]:
    with launched.report_once():
        recipe = _recipe(arguments)
    start_processes(arguments, recipe)
    from hornbook.measure.profiling import measure_profile
    from hornbook.track.profile import write_profile
    from hornbook.track.profile_page import write_profile_page

    output = arguments.output or Path("profiles") / recipe.name
    world = join_ranks(arguments, recipe)
    with world.session():
        profile = measure_profile(recipe, world, output, num_steps=arguments.steps)
    page = output / "profile.html"
    if world.is_first:
        write_profile(output, profile)
        write_profile_page(page, profile)
        _print(profile)
        say(f"page {page}")
    numbers = _numbers(profile)
    modules = [{**module._asdict()} for module in profile.modules]
    operators = [{**operator._asdict()} for operator in profile.operators]
    ranks = [{"waiting": rank.waiting, "data": rank.data, "idle": rank.idle} for rank in profile.ranks]
    found = {"facts": profile.facts, "modules": modules, "operators": operators, "ranks": ranks}
    return {"output": str(output), "page": str(page), **numbers, **found}


def _recipe(arguments: argparse.Namespace) -> "Recipe":
    """Return the recipe; without data, with random tokens and, if it sets none, a vocabulary of 4,096."""
    from dataclasses import replace

    from hornbook.config import load_recipe

    if arguments.profiles:
        raise UserError(f"unexpected argument {str(arguments.profiles[0])!r} (see `hornbook profile --help`)")
    recipe = load_recipe(arguments.recipe, arguments.overrides, require_data=False).recipe
    if recipe.data.train:
        return recipe
    return with_some_vocabulary(replace(recipe, data=replace(recipe.data, synthetic=True)))


def _numbers(profile: "Profile") -> dict[str, float | None]:
    """Return the totals by which two profiles are compared, besides modules and operators."""
    return {
        "step_seconds": profile.step_seconds,
        "tokens_per_second": profile.tokens_per_second,
        "tflops": profile.tflops,
        "mfu": profile.mfu,
        "data_share": profile.data,
        "waiting_share": profile.waiting,
        "idle_share": profile.idle,
        "peak_bytes": profile.peak_bytes,
    }


def _print(profile: "Profile") -> None:
    from hornbook.track.profile_page import headline

    print_columns([(name, value, detail) for name, value, detail in headline(profile)])
    step = sum(operator.seconds for operator in profile.operators)
    print()
    rows = [("operator", "ms a step", "share", "calls")]
    for operator in profile.operators[:_SHOWN]:
        rows.append(
            (
                operator.name[:60],
                f"{1e3 * operator.seconds:,.2f}",
                f"{operator.seconds / step:.1%}",
                f"{operator.calls:,.0f}",
            )
        )
    print_columns(rows, right=(1, 2, 3))


def _compare(arguments: argparse.Namespace) -> dict[str, object]:
    from hornbook.track.profile import read_profile

    if len(arguments.profiles) != 2:
        raise UserError(f"`hornbook profile {_COMPARE}` takes two profiles; found {len(arguments.profiles)}")
    first, second = map(read_profile, arguments.profiles)
    numbers, other = _numbers(first), _numbers(second)
    modules = _differences(
        {module.name: module.seconds for module in first.modules},
        {module.name: module.seconds for module in second.modules},
    )
    operators = _differences(
        {operator.name: operator.seconds for operator in first.operators},
        {operator.name: operator.seconds for operator in second.operators},
    )
    print_columns([("", "A", "B", "B / A"), *_rows(numbers, other)], right=(1, 2, 3))
    for title, rows in (("module, ms a step", modules), ("operator, ms a step", operators)):
        print()
        shown = [(name[:60], *(f"{1e3 * value:,.2f}" for value in values)) for name, *values in rows[:_SHOWN]]
        print_columns([(title, "A", "B", "B - A"), *shown], right=(1, 2, 3))
    keys = ("name", "a", "b", "difference")
    tables = {"modules": modules, "operators": operators}
    listed = {kind: [dict(zip(keys, row, strict=True)) for row in rows] for kind, rows in tables.items()}
    return {"a": numbers, "b": other, **listed}


def _differences(first: dict[str, float], second: dict[str, float]) -> list[tuple[str, float, float, float]]:
    """Return (name, A, B, B - A) in seconds, largest difference first."""
    names = dict.fromkeys([*first, *second])
    rows = [(name, first.get(name, 0.0), second.get(name, 0.0)) for name in names]
    return sorted(((name, a, b, b - a) for name, a, b in rows), key=lambda row: -abs(row[3]))


def _rows(first: dict[str, float | None], second: dict[str, float | None]) -> list[tuple[str, ...]]:
    rows = list[tuple[str, ...]]()
    for name, value in first.items():
        other = second[name]
        ratio = f"{other / value:.3f}" if value and other is not None else ""
        shown = ["" if number is None else f"{number:,.4g}" for number in (value, other)]
        rows.append((name.replace("_", " "), *shown, ratio))
    return rows
