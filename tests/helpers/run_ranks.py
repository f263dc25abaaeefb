"""Whole runs, one after the other, as one rank: see ``ranks.train_on_ranks``."""

from pathlib import Path

from hornbook.config import load_recipe
from hornbook.parallel.device import prepare
from hornbook.parallel.world import World
from hornbook.run.launch import open_run
from hornbook.run.loop import train_until_done


def main(runs: dict[str, list[str]]) -> None:
    device = prepare("cpu", threads=1)
    world = World.join(device)
    for folder, (recipe, *overrides) in runs.items():
        described = load_recipe(recipe, overrides).recipe
        with open_run(described, Path(folder), world.laid_out(described.parallel)) as run:
            train_until_done(run)
    world.leave()
