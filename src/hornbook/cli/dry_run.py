"""``hornbook train RECIPE --dry-run``: print shapes, parameters, layout and plan of a run without training.

The model is built on the meta device, as for a training, so it takes no memory.
"""

import argparse
import math
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from hornbook.cli.plan_command import planned_recipe
from hornbook.cli.plan_table import describe_plan, print_plan
from hornbook.cli.table import print_columns
from hornbook.parallel import launched

if TYPE_CHECKING:
    from hornbook.config import Recipe

_REFUSED = 2


def dry_run(recipe: "Recipe", arguments: argparse.Namespace) -> dict[str, object]:
    """Print what would be trained; the result's exit code is 2 if it does not fit in memory.

    Args:
        recipe: resolved; the default vocabulary is that of its data, or of the published model.
        arguments: of ``hornbook train``.
    """
    from hornbook.parallel.device import choose_device
    from hornbook.plan.planner import refuse_unplannable
    from hornbook.run.initial_weights import outline
    from hornbook.run.planning import plan_here

    recipe, facts = planned_recipe(recipe)
    num_ranks = arguments.processes or launched.num_ranks()
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
