"""Assemble tensors on real ranks, as one rank: see test_whole_tensors.py."""

import torch
import torch.distributed as dist

from hornbook.parallel.ranks import Ranks
from hornbook.parallel.whole_tensors import Assembly, Box, Parts
from hornbook.parallel.world import World


def rows_of(rank: int, size: int, rows: int) -> tuple[int, int]:
    first, end = rank * rows // size, (rank + 1) * rows // size
    return first, end - first


def main() -> None:
    """Tensors in rows of different number, in columns, in copies, and one that a single rank has."""
    world = World.join(torch.device("cpu"))
    rank, size = dist.get_rank(), dist.get_world_size()
    ranks = Ranks(rank, size, dist.group.WORLD, dist.group.WORLD)
    for dtype in (torch.float32, torch.bfloat16):
        wholes = {
            "rows": torch.arange(70.0).view(7, 10).to(dtype),
            "columns": torch.arange(24.0).view(2, 3, 4).to(dtype),
            "copies": torch.arange(9.0).view(3, 3).to(dtype),
            "pairs": torch.arange(8.0).view(4, 2).to(dtype),
        }
        first, num = rows_of(rank, size, 7)
        column, width = rows_of(rank, size, 4)
        half = rank % 2
        boxes = {
            "rows": Box((first, 0), (num, 10)),
            "columns": Box((0, 0, column), (2, 3, width)),
            "copies": Box((0, 0), (3, 3)),
            "pairs": Box((2 * half, 0), (2, 2)),
        }
        parts = Parts(ranks, boxes)
        assembly = Assembly(ranks, [parts.boxes[name] for name in wholes])
        assert len(set(assembly.owners)) == min(size, 4), "the work is divided"
        own = [boxes[name].of(whole).clone() for name, whole in wholes.items()]
        found = assembly.assemble(own)
        expected = [whole for whole, owner in zip(wholes.values(), assembly.owners, strict=True) if owner == rank]
        assert len(found) == len(expected)
        assert all(map(torch.equal, found, expected))
        results = assembly.hand_back([2 * whole for whole in found], own[0])
        for result, part in zip(results, own, strict=True):
            assert torch.equal(result, 2 * part)
    world.leave()
