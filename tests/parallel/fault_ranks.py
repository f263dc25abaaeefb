"""Saves that fail on one rank of two, at many operations on the disk, in front of the training and behind it.

Run by test_saving_ranks.py under ``torchrun``; each rank writes what became of every run to ``FOLDER/<rank>.json``.
"""

import json
import sys
from pathlib import Path

import torch
from uneven_ranks import TINY, _train

from hornbook import checkpoint
from hornbook.config import ParallelConfig
from hornbook.parallel.world import World
from hornbook.storage import faults

SHARDED = ("--training.micro-batch-size=1", "--training.steps=4", "--parallel.data-parallel=shard")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    world = World.join(torch.device("cpu")).laid_out(ParallelConfig(data_parallel="shard"))
    seen = []
    for way in ("front", "behind"):
        for failing in range(2):
            for n in (1, 3, 5, 9):
                run = folder / f"{way}-{failing}-{n}"
                original = checkpoint.save if failing == 0 else checkpoint.save_share
                name = "save" if failing == 0 else "save_share"

                def save(*arguments, original=original, n=n):
                    with faults.inject("any", n, "enospc", lasting=True):
                        return original(*arguments)

                if world.rank == failing:
                    setattr(checkpoint, name, save)
                options = (*SHARDED, *(["--checkpoint.background"] if way == "behind" else []))
                result = _train(world, run, *options)
                setattr(checkpoint, name, original)
                world.barrier()
                steps = checkpoint.steps_in(run / "checkpoints")
                sound = not any(checkpoint.verify(checkpoint.folder_of(run / "checkpoints", step)) for step in steps)
                seen.append({**result, "way": way, "failing": failing, "n": n, "steps": steps, "sound": sound})
    (folder / f"{world.rank}.json").write_text(json.dumps(seen), encoding="utf-8")
    world.leave()


if __name__ == "__main__":
    assert TINY
    main(Path(sys.argv[1]))
