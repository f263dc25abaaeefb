"""Trainings in bf16 on two ranks that gather weights in fp32, then, as on GPUs, in bf16; see test_narrow_gathers.py."""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch
from tiny_layouts import recipe_of, train
from torch.utils._python_dispatch import TorchDispatchMode

from hornbook.engine import parallelize
from hornbook.parallel.world import World

NAMES = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter"}


class Counting(TorchDispatchMode):
    """Counts the bytes of collectives' inputs by name and dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if name := NAMES.get(function.overloadpacket.__name__):
            given = args[1]
            self.seen[f"{name} {given.dtype}".replace("torch.", "")] += given.nbytes
        return function(*args, **(kwargs or {}))


def main(folder: Path) -> None:
    world = World.join(torch.device("cpu"))
    found = []
    for layout in ("shard 2", "shard 2, once"):
        for narrow in (None, torch.bfloat16):
            recipe = recipe_of("gpt", "adamw", layout)
            recipe = replace(recipe, precision=replace(recipe.precision, compute="bf16", kernels="torch"))
            parallelize.gathered_dtype = lambda model, device, narrow=narrow: narrow
            with Counting() as counting:
                trained = train(recipe, world.laid_out(recipe.parallel))
            gradients = torch.cat([gradient.flatten() for gradient in trained.gradients.values()])
            dtypes = sorted({str(gradient.dtype) for gradient in trained.gradients.values()})
            found.append(
                {"losses": trained.losses, "dtypes": dtypes, "bytes": counting.seen, "gradients": gradients.tolist()}
            )
    if world.is_first:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    world.leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
