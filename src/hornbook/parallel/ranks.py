"""The ranks along one axis of a run, and tensors that are split over them.

::

    Ranks(rank=1, size=2).sum_tensor(x)                 sums ``x`` over both ranks, in place

    DTensor [8, 6], split on dimension 1 over 2 ranks   local [8, 3]     box on rank 1: begin [0, 3], shape [8, 3]

Weights, gradients and moments are stored as DTensors; layers and updates compute with the local parts, which are plain
tensors. A plain tensor is treated as its own local part. PyTorch's DTensor package is imported only for such tensors,
since the import takes half a second.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hornbook.parallel.watch import Watch


class Ranks:
    """The ranks along one axis of a run; ``Ranks()`` is a single rank.

    Args:
        rank: of this process along the axis.
        size: number of ranks along the axis.
        tensors: process group for tensors on the device; None for a single rank.
        host: process group for numbers in host memory, which avoids synchronizing with the device; None for a single
            rank.
        watch: finds the lost rank when communication fails; None for a single rank.
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
        """Return the sums over the ranks, without synchronizing with the device."""
        return [int(value) for value in self._sum_on_host(values, torch.int64)] if self.size > 1 else list(values)

    def sum_floats(self, values: Sequence[float]) -> list[float]:
        """Return the sums over the ranks in double precision, without synchronizing with the device."""
        return [float(value) for value in self._sum_on_host(values, torch.float64)] if self.size > 1 else list(values)

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        """Return the sum of ``tensor`` over the ranks, in place."""
        if self.size > 1:
            with explained(self._watch):
                dist.all_reduce(tensor, group=self.tensors)
        return tensor

    def move(self, tensor: Tensor, source: int, target: int) -> None:
        """Copy ``tensor`` from the rank ``source`` to the rank ``target``; other ranks do nothing."""
        with explained(self._watch):
            if self.rank == source:
                dist.send(tensor.contiguous(), group=self.tensors, group_dst=target)
            elif self.rank == target:
                dist.recv(tensor, group=self.tensors, group_src=source)

    def share(self, value: Any, source: int) -> Any:
        """Return the ``value`` of the rank ``source`` on every rank; its tensors must be in host memory."""
        values = [value]
        if self.size > 1:
            with explained(self._watch):
                dist.broadcast_object_list(values, group=self._host, group_src=source)
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's ``value``, in their order; tensors in it must be in host memory."""
        values = [value] * self.size
        if self.size > 1:
            with explained(self._watch):
                dist.all_gather_object(values, value, group=self._host)
        return values

    def exchange(self, values: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Return what all ranks send to this one, in their order.

        Args:
            values: ``[sum(sent)]``, of any dtype: what is sent to each rank, in their order.
            sent: number of elements that are sent to each rank.
            received: number of elements that each rank sends to this one.
        """
        width = values.element_size()
        result = values.new_empty(sum(received))
        with explained(self._watch):
            dist.all_to_all_single(
                result.view(torch.uint8),
                values.view(torch.uint8),
                [width * number for number in received],
                [width * number for number in sent],
                group=self.tensors,
            )
        return result

    def start_sums(self, tensors: Sequence[Tensor]) -> dist.Work:
        """Start summing each of ``tensors``, dense and of one dtype, over two or more ranks, in place.

        Do not use them before ``end_sum``.
        """
        assert self.tensors is not None, "two or more ranks"
        options = dist.AllreduceCoalescedOptions()
        options.asyncOp = True
        with explained(self._watch):
            work: dist.Work = self.tensors.allreduce_coalesced([*tensors], options)
        return work

    def end_sum(self, work: dist.Work) -> None:
        """Wait for what ``start_sums`` has started."""
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
    """Raise an error that names the lost rank if communication in the ``with`` block fails because of it."""
    try:
        yield
    except RuntimeError as error:  # gloo raises no more specific type
        if watch is None:
            raise
        raise watch.explain(error) from error


class Cut(NamedTuple):
    """The tensor-parallel split of a weight."""

    dimension: int
    """The dimension of the weight that is split."""
    rank: int
    """The rank of this process along the axis."""
    group: dist.ProcessGroup

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of ``x`` over the ranks, in place and without a gradient."""
        dist.all_reduce(x, group=self.group)
        return x

    def largest(self, x: Tensor) -> Tensor:
        """Return the maximum of ``x`` over the ranks, in place and without a gradient."""
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x


def is_cut(tensor: Tensor) -> bool:
    """Return whether a tensor is split over ranks."""
    return hasattr(tensor, "placements")


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of ``tensor``, which shares its memory; gradients flow to ``tensor``."""
    whole: Any = tensor
    part: Tensor = whole.to_local() if is_cut(tensor) else tensor
    return part


def own_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of ``tensor`` without a gradient; it shares its memory and its version."""
    with torch.no_grad():  # otherwise, a DTensor returns a view with a version of its own
        return local(tensor).detach()


def like(tensor: Tensor, part: Tensor) -> Tensor:
    """Return ``part``, this rank's of a tensor that is split as ``tensor`` is, as such a tensor."""
    if not is_cut(tensor):
        return part
    from torch.distributed.tensor import DTensor

    cut: Any = tensor
    return DTensor.from_local(part, cut.device_mesh, cut.placements, run_check=False)


def cut_of(weight: Tensor) -> Cut:
    """Return the split of a weight, a DTensor of the tensor-parallel axis only, while its layer computes."""
    cut: Any = weight
    (placement,) = cut.placements
    return Cut(placement.dim, cut.device_mesh.get_local_rank(), cut.device_mesh.get_group())


def box_of(tensor: Tensor) -> tuple[Sequence[int], Sequence[int]]:
    """Return the offset of the local part in the whole tensor, and its shape."""
    if not is_cut(tensor):
        return (0,) * tensor.dim(), tuple(tensor.shape)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    cut: Any = tensor
    shape, begin = compute_local_shape_and_global_offset(tensor.shape, cut.device_mesh, cut.placements)
    return tuple(begin), tuple(shape)


def cut_axes(tensor: Tensor, dimensions: Collection[int] | None = None) -> set[str]:
    """Return the names of the axes over which a tensor is split, on any of its ``dimensions``; None: on any at all."""
    if not is_cut(tensor):
        return set()
    cut: Any = tensor
    placements = zip(cut.device_mesh.mesh_dim_names, cut.placements, strict=True)
    split = ((name, placement.dim) for name, placement in placements if not placement.is_replicate())
    return {name for name, dimension in split if dimensions is None or dimension in dimensions}


@contextmanager
def blocked(marked: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Iterator[list[float]]:
    """Collect the duration of each wait in seconds: all of PyTorch's communication calls ``Work.wait``.

    Each wait runs in the context ``marked()``.
    """
    wait, seconds = dist.Work.wait, []

    def timed(work: Any, *args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            with marked():
                return wait(work, *args, **options)
        finally:
            seconds.append(time.perf_counter() - start)

    dist.Work.wait = timed  # type: ignore[method-assign, assignment]
    try:
        yield seconds
    finally:
        dist.Work.wait = wait  # type: ignore[method-assign]
