"""Tensors that are cut over ranks: the part that this rank holds, and where in the whole it lies.

::

    DTensor [8, 6], cut on dimension 1 over 2 ranks     local [8, 3]     box on rank 1: begin [0, 3], shape [8, 3]

Weights, gradients and moments are DTensors at rest; layers and updates compute with the local parts, which are plain
tensors. A plain tensor counts as a part that is the whole. PyTorch's tensor-parallel package is imported only where
there is such a tensor, since that takes half a second.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


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
