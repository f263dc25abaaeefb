"""Save on one layout, resume on another: as one rank of ``torchrun``, or imported for one process.

``pair_ranks.py FOLDER SAVING RESUMING``, lists of layouts as JSON. A saving layout stops ``FOLDER/<layout>`` halfway;
a resuming one finishes a copy of each, ``FOLDER/<layout>, then <its own>``. Each rank writes the tokens that it was
given to ``<run>/given-<rank>.json``. See test_checkpoint_pairs.py.
"""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import torch
from tiny_layouts import recipe_of

from hornbook.errors import HornbookError
from hornbook.parallel.world import World
from hornbook.run import loop
from hornbook.run.launch import open_run

LAYOUTS = {"one process": 1, "data 2": 2, "tensor 2": 2, "1f1b 2": 2, "shard 4": 4, "tensor 2 x shard 2": 4}
"""With the number of their ranks."""
NUM_STEPS = 4


def train(folder: Path, layout: str, world: World, stop_after: int | None = None) -> None:
    """Train up to a step, from where the run in ``folder`` stands."""
    recipe = recipe_of("gpt", "adamw", layout)
    recipe = replace(
        recipe,
        training=replace(recipe.training, steps=NUM_STEPS),
        tracking=replace(recipe.tracking, log_every_steps=1),
        name="run",
    )
    world, given, train_step = world.laid_out(recipe.parallel), [], loop.train_step

    def record(state, micro_batches, *others):
        given.append([batch["tokens"].tolist() for batch in micro_batches])
        return train_step(state, micro_batches, *others)

    loop.train_step = record
    try:
        with open_run(recipe, folder, world) as run:
            loop.train_until_done(run, stop_after)
    except HornbookError as error:
        if stop_after is None or not world.was_reported(error):
            raise
    finally:
        loop.train_step = train_step
    (folder / f"given-{world.rank}.json").write_text(json.dumps([world.data.rank, given]))


def main(folder: Path, saving: list[str], resuming: list[str], world: World) -> None:
    """Make the runs that stop halfway, then those that go on."""
    for layout in saving:
        train(folder / layout, layout, world, NUM_STEPS // 2)
    for layout in resuming:
        for source in LAYOUTS:
            target = folder / f"{source}, then {layout}"
            if world.is_first:
                shutil.copytree(folder / source, target)
                for path in target.glob("given-*"):
                    path.unlink()
            world.barrier()
            train(target, layout, world)


if __name__ == "__main__":
    torch.set_num_threads(1)
    together = World.join(torch.device("cpu"))
    main(Path(sys.argv[1]), *map(json.loads, sys.argv[2:]), together)
    together.leave()
