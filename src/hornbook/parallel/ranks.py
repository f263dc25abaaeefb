"""The ranks along one axis of a run, and tensors that are cut over them.

::

    Ranks(rank=1, size=2).sum_tensor(x)                 adds up ``x`` of both ranks, in place

    DTensor [8, 6], cut on dimension 1 over 2 ranks     local [8, 3]     box on rank 1: begin [0, 3], shape [8, 3]

Weights, gradients and moments are DTensors at rest; layers and updates compute with the local parts, which are plain
tensors. A plain tensor counts as a part that is the whole. PyTorch's tensor-parallel package is imported only where
there is such a tensor, since that takes half a second.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hornbook.parallel.watch import Watch


class Ranks:
    """The ranks along one axis of a run; ``Ranks()`` is a single one.

    Args:
        rank, size: which of them this is, and of how many.
        tensors: the group that exchanges tensors on their device; None for a single rank.
        host: the group that exchanges the host's own numbers, so that no device is waited for; None for a single rank.
        watch: names a lost rank when a sum fails; None for a single rank.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        tensors: dist.ProcessGroup | None = None,
        host: dist.ProcessGroup | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.rank, self.size = rank, size
        self.tensors, self._host, self._watch = tensors, host, watch

    def sum_integers(self, values: Sequence[int]) -> list[int]:
        """Return the sums over the ranks; the device is not waited for."""
        return [int(value) for value in self._sum_on_host(values, torch.int64)] if self.size > 1 else list(values)

    def sum_floats(self, values: Sequence[float]) -> list[float]:
        """Return the sums over the ranks, added up in double precision; the device is not waited for."""
        return [float(value) for value in self._sum_on_host(values, torch.float64)] if self.size > 1 else list(values)

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        """Return the sum over the ranks of ``tensor``, which is written in place."""
        if self.size > 1:
            with explained(self._watch):
                dist.all_reduce(tensor, group=self.tensors)
        return tensor

    def move(self, tensor: Tensor, source: int, target: int) -> None:
        """Copy ``tensor`` of the rank ``source`` into that of ``target``; the other ranks do nothing."""
        with explained(self._watch):
            if self.rank == source:
                dist.send(tensor.contiguous(), group=self.tensors, group_dst=target)
            elif self.rank == target:
                dist.recv(tensor, group=self.tensors, group_src=source)

    def share(self, value: Any, source: int) -> Any:
        """Return the ``value`` of the rank ``source``, whose tensors lie in the host's memory, on every rank."""
        values = [value]
        if self.size > 1:
            with explained(self._watch):
                dist.broadcast_object_list(values, group=self._host, group_src=source)
        return values[0]

    def start_sum(self, tensor: Tensor) -> dist.Work:
        """Begin to add up ``tensor`` over two or more ranks, in place; it may be used after ``end_sum``."""
        with explained(self._watch):
            work: dist.Work = dist.all_reduce(tensor, group=self.tensors, async_op=True)
        return work

    def end_sum(self, work: dist.Work) -> None:
        """Wait for a sum."""
        with explained(self._watch):
            work.wait()

    def _sum_on_host(self, values: Sequence[float], dtype: torch.dtype) -> list[float]:
        total = torch.tensor(values, dtype=dtype)
        with explained(self._watch):
            dist.all_reduce(total, group=self._host)
        sums: list[float] = total.tolist()
        return sums


@contextmanager
def explained(watch: Watch | None) -> Iterator[None]:
    """Name the rank that was lost, if that is why communication inside the block fails."""
    try:
        yield
    except RuntimeError as error:  # gloo's own has no other type
        if watch is None:
            raise
        raise watch.explain(error) from error


class Cut(NamedTuple):
    """How the layer that a weight belongs to is split over ranks."""

    dimension: int
    """Of the weight."""
    rank: int
    """Of this process along the axis."""
    group: dist.ProcessGroup

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over the ranks, without a gradient; ``x`` is written in place."""
        dist.all_reduce(x, group=self.group)
        return x

    def largest(self, x: Tensor) -> Tensor:
        """Return the maximum over the ranks, without a gradient; ``x`` is written in place."""
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x

    def side_by_side(self, x: Tensor) -> Tensor:
        """Return the ranks' tensors of one shape, concatenated on the last dimension; without a gradient."""
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat(parts, -1)


def is_cut(tensor: Tensor) -> bool:
    """Tell whether a tensor is cut over ranks."""
    return hasattr(tensor, "placements")


def local(tensor: Tensor) -> Tensor:
    """Return the part that this rank holds, on its memory; its gradient becomes that of the whole."""
    whole: Any = tensor
    part: Tensor = whole.to_local() if is_cut(tensor) else tensor
    return part


def cut_of(weight: Tensor) -> Cut:
    """Return how the weight of a layer, which is cut by tensor parallelism, is cut while the layer computes."""
    cut: Any = weight
    (placement,) = cut.placements
    return Cut(placement.dim, cut.device_mesh.get_local_rank(), cut.device_mesh.get_group())


def box_of(tensor: Tensor) -> tuple[Sequence[int], Sequence[int]]:
    """Return where the local part begins in the whole tensor, and its shape."""
    if not is_cut(tensor):
        return (0,) * tensor.dim(), tuple(tensor.shape)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    cut: Any = tensor
    shape, begin = compute_local_shape_and_global_offset(tensor.shape, cut.device_mesh, cut.placements)
    return tuple(begin), tuple(shape)


def cut_axes(tensor: Tensor) -> set[str]:
    """Return the names of the axes over which a tensor is cut."""
    if not is_cut(tensor):
        return set()
    cut: Any = tensor
    placements = zip(cut.device_mesh.mesh_dim_names, cut.placements, strict=True)
    return {name for name, placement in placements if not placement.is_replicate()}
