"""Bundled recipes on their own layouts as one rank of ``torchrun``: ``recipe_ranks.py FOLDER NAME ...``.

The first rank writes to ``FOLDER/<ranks>.json`` how each compares with one process; see test_recipe_layouts.py.
"""

import json
import sys
from pathlib import Path

import torch

from hornbook.config import load_recipe
from hornbook.measure.verification import verify_topology
from hornbook.parallel.world import World

SMALL = """
--model.hidden-size=32 --model.num-heads=8 --model.head-size=4 --model.vocab-size=70 --model.max-positions=16
--data.synthetic --data.sequence-length=16 --training.global-batch-size=16 --training.micro-batch-size=1
--precision.compute=fp32 --training.steps=3
"""
"""Layers and layout stay."""


def main(folder: Path, *names: str) -> None:
    """Take three steps of each recipe, on its layout and on one process."""
    torch.set_num_threads(1)
    world = World.join(torch.device("cpu"))
    found = {}
    for name in names:
        recipe = load_recipe(name, SMALL.split()).recipe
        differences, refused = verify_topology(recipe, world, {name: recipe.parallel}, num_steps=3)
        assert not refused, refused
        found |= {row.layout: [row.gradients, row.losses] for row in differences}
    if world.is_first:
        (folder / f"{world.size}.json").write_text(json.dumps(found))
    world.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
