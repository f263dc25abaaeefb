"""Tiny trainings on several layouts as one rank: see test_layouts.py.

The first rank writes what it saw of each case to ``FOLDER/<number>.pt`` and the runs to ``FOLDER/<layout>``.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import tiny_layouts
import torch
from tiny_layouts import recipe_of, run_labelled, run_on

from hornbook.parallel.world import World


def main(
    folder: Path,
    cases: list[list[str]],
    chain: list[str],
    labelled: list[list[str]],
    more: Sequence[str] = (),
    num_micro_batches: Sequence[int] = (),
    kept: Sequence[str] = (),
) -> None:
    """Make the trainings ``cases``, each (model, optimizer, layout), then a run that goes along a chain of layouts.

    It has ``more`` options. Fine-tunings follow, each (head, layout), pipelines of so many micro-batches a step, and
    layouts of which the tensors that layers keep are counted.
    """
    torch.set_num_threads(1)
    world = World.join(torch.device("cpu"))
    for number, case in enumerate(cases):
        recipe = recipe_of(*case)
        trained = tiny_layouts.train(recipe, world.laid_out(recipe.parallel))
        if world.is_first:
            torch.save(asdict(trained), folder / f"{number}.pt")
    for number, (layout, previous) in enumerate(zip(chain, [None, *chain], strict=False)):
        run_on(folder, layout, world, 4 * (number + 1), previous, more)
    for head, layout in labelled:
        run_labelled(folder, head, layout, world)
    counts = [tiny_layouts.live_wires(world, number) for number in num_micro_batches]
    (folder / f"wires-{world.rank}.json").write_text(json.dumps(counts))
    counts = [tiny_layouts.kept_tensors(world, layout) for layout in kept]
    (folder / f"kept-{world.rank}.json").write_text(json.dumps(counts))
    world.leave()
