"""Predicted memory beside measured, of one recipe after the other, as one rank of ``torchrun``: ``ranks.errors_of``."""

import gc
import json
import sys

from hornbook.config import load_recipe
from hornbook.measure.memory_check import check_steps
from hornbook.parallel.device import prepare
from hornbook.parallel.world import World
from hornbook.plan.stand_ins import shrunk


def main(runs: list[list[str]]) -> None:
    """Write the relative errors of each rank, a list for each of ``runs``: a recipe and its options."""
    device = prepare("cpu", threads=1)
    world = World.join(device)
    errors = []
    for name, *options in runs:
        recipe = shrunk(load_recipe(name, options, require_data=False).recipe, world.size)
        laid_out = world.laid_out(recipe.parallel)
        errors.append([error for (error,) in laid_out.gather([check_steps(recipe, laid_out).error])])
        gc.collect()  # tensors of one run that die in the next would count there
    if world.is_first:
        sys.stdout.write(json.dumps(errors))
    world.leave()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
