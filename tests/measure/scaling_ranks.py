"""Measure tiny trainings as one rank of ``torchrun``: ``scaling_ranks.py FILE CASES``, see test_scaling.py.

The first rank writes what it found of each case, (model, layout), to FILE.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from tiny_layouts import recipe_of

from hornbook.measure.scaling import measure_scaling
from hornbook.parallel.world import World


def main(file: Path, cases: list[list[str]]) -> None:
    """Measure each case; the first one beside one process."""
    world = World.join(torch.device("cpu"))
    found = []
    for number, (model, layout) in enumerate(cases):
        recipe = recipe_of(model, "adamw", layout)
        scaling = measure_scaling(recipe, world.laid_out(recipe.parallel), rounds=1, with_alone=number == 0)
        found.append(asdict(scaling))
    if world.is_first:
        file.write_text(json.dumps(found))
    world.leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
