"""The processes of a run, their axes and their communication.

The ranks of a run are arranged along axes (`hornbook.config.parallel`). Data-parallel ranks (``world.data``) take
shares of every global batch and sum counts and gradients. Tensor-parallel ranks (``world.tensor``) compute the same
batch with a part of each layer, pipeline ranks (``world.pipeline``) with some of the layers. ``world.holders`` together
hold one copy of the weights, or of those of a stage; ``world.updaters`` are all ranks that hold any of these. Losses
are divided by *global* counts before the backward pass, so gradients are summed without a factor::

    counts --data.sum--> divide --> backward --> gradients --data.sum--> the same update on every rank

A world of one process sends nothing. Otherwise, tensors are sent by NCCL on GPUs and gloo on CPUs, and numbers in host
memory always by gloo, since a GPU would sum them only after all queued work. At a barrier, ranks may wait for the first
one to write a large checkpoint, so barriers have a process group with a timeout of hours. `watch` detects lost ranks.
"""

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from hornbook.config.parallel import ParallelConfig, Sizes
from hornbook.errors import HornbookError, RankError, Terminated, UserError
from hornbook.parallel import launched
from hornbook.parallel.ranks import Ranks, explained
from hornbook.parallel.rendezvous import meet, named, open_store
from hornbook.parallel.watch import Watch

_TIMEOUT = timedelta(minutes=10)
_PATIENCE = timedelta(hours=12)
"""Timeout of barriers."""


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The ranks along each axis of a run; ``Axes()`` is one process."""

    data: Ranks = field(default_factory=Ranks)
    """Ranks that take shares of each global batch."""
    tensor: Ranks = field(default_factory=Ranks)
    """Ranks that compute the same batch with a part of each layer."""
    sequence: Ranks = field(default_factory=Ranks)
    """Ranks that hold a slice of the tokens between layers: those of ``tensor``, or a single one."""
    pipeline: Ranks = field(default_factory=Ranks)
    """Ranks that compute the same batch with some of the layers."""
    holders: Ranks = field(default_factory=Ranks)
    """Ranks that together hold one copy of the weights, or of those of a stage."""
    updaters: Ranks = field(default_factory=Ranks)
    """Ranks that update the same weights: all, or all of a stage."""
    mesh: DeviceMesh | None = None
    """PyTorch's mesh of all ranks, by the fields of ``Sizes``; None if no weight is split."""


class World:
    """All processes of a run; ``World()`` is a run of one process.

    Args:
        everyone: all ranks.
        axes: of the run; None for data parallelism only.
        device: of this rank's tensors.
        waiting: process group for barriers, with a long timeout; None for one process.
        watch: detects lost ranks; None for one process.

    Attributes:
        everyone: all ranks, along no axis.
        rank: of this process, from 0.
        size: number of processes.
        is_first: whether this rank writes files and prints.
        is_sharded: whether weights are split over data-parallel ranks; gradients are then reduced as they are computed.
    """

    aside: "World"
    """The same ranks with separate connections, for a thread that saves while the main thread trains."""

    def __init__(
        self,
        everyone: Ranks | None = None,
        axes: Axes | None = None,
        device: torch.device | None = None,
        waiting: dist.ProcessGroup | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.everyone = everyone or Ranks()
        self.rank, self.size = self.everyone.rank, self.everyone.size
        self.is_first = self.rank == 0
        axes = axes or Axes(data=self.everyone, updaters=self.everyone)
        self.data, self.tensor, self.pipeline = axes.data, axes.tensor, axes.pipeline
        self.sequence, self.holders, self.updaters, self.mesh = axes.sequence, axes.holders, axes.updaters, axes.mesh
        self.is_sharded = self.holders.size > self.tensor.size
        self.device = device or torch.device("cpu")
        self._waiting, self._watch = waiting, watch
        self._agreed: HornbookError | None = None
        self.aside = self

    @classmethod
    def join(
        cls,
        device: torch.device,
        parallel: ParallelConfig | None = None,
        recipe: Mapping[str, object] | None = None,
    ) -> "World":
        """Connect to the other ranks, or return a world of one process.

        If it raises, no process group has been created.

        Args:
            device: of this rank's tensors.
            parallel: the axes; None for data parallelism only.
            recipe: as a document, which must be the same on all ranks.

        Raises:
            UserError: the sizes of the axes do not multiply to the number of ranks.
            RankError: a rank did not connect, or has a different recipe.
        """
        parallel = parallel or ParallelConfig()
        parallel.sizes(launched.num_ranks())
        if not launched.is_rank():
            return cls(device=device)
        rank, size = launched.rank(), launched.num_ranks()
        store = open_store(rank, size)
        meet(store, rank, size, recipe or {})
        options: dict[str, Any] = {"store": store, "rank": rank, "world_size": size, "timeout": _TIMEOUT}
        with _connecting(rank, size):
            if device.type == "cuda":
                dist.init_process_group("nccl", device_id=device, **options)
                host = dist.new_group(backend="gloo", timeout=_TIMEOUT)
            else:
                dist.init_process_group("gloo", **options)
                host = dist.group.WORLD
        watch = Watch(store, rank, size)
        everyone = Ranks(rank, size, dist.group.WORLD, host, watch)
        waiting = dist.new_group(backend="gloo", timeout=_PATIENCE)
        world = cls(everyone, axes_of(parallel, everyone, device, watch), device=device, waiting=waiting, watch=watch)
        aside = dist.new_group(backend="gloo", timeout=_PATIENCE)
        world.aside = cls(Ranks(rank, size, aside, aside, watch), device=device, waiting=aside, watch=watch)
        return world

    def laid_out(self, parallel: ParallelConfig) -> "World":
        """Return the same ranks with other axes; all ranks must call this together.

        Raises:
            UserError: the sizes of the axes do not multiply to the number of ranks.
        """
        parallel.sizes(self.size)
        if self._watch is None:
            return World(device=self.device)
        axes = axes_of(parallel, self.everyone, self.device, self._watch)
        world = World(self.everyone, axes, self.device, self._waiting, self._watch)
        world.aside = self.aside
        return world

    def leave(self, *, failed: bool = False) -> None:
        """Close the connections to the other ranks; after a failure, do not wait for them, as NCCL would."""
        if self._watch is not None:
            self._watch.end()
        if dist.is_initialized():
            if failed and self.device.type == "cuda":
                dist.distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()
        if self._watch is not None:  # now that the others notice that this rank has left
            self._watch.see_off()

    def num_copies(self, axes: Collection[str]) -> int:
        """Return how many of ``holders`` hold the same part of a tensor that is split over ``axes``."""
        sizes = {"shard": self.holders.size // self.tensor.size, "tensor": self.tensor.size}
        return math.prod(size for name, size in sizes.items() if name not in axes)

    def holds_first(self, axes: Collection[str]) -> bool:
        """Return whether this is the first rank of its stage with its part of a tensor that is split over ``axes``."""
        if self.mesh is None:
            return self.data.rank == 0
        coordinate = dict(zip(Sizes._fields, self.mesh.get_coordinate() or (), strict=True))
        return not any(number for name, number in coordinate.items() if name not in {"pipeline", *axes})

    def ranks_where(self, condition: bool) -> list[int]:
        """Return the ranks on which ``condition`` is true, the same on all ranks."""
        votes = [condition and rank == self.rank for rank in range(self.size)]
        return [rank for rank, count in enumerate(self.everyone.sum_integers(votes)) if count]

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return the ``values`` of every rank, the same on all ranks; each must have the same number of values."""
        own = [value if rank == self.rank else 0.0 for rank in range(self.size) for value in values]
        everywhere = self.everyone.sum_floats(own)
        return [everywhere[first : first + len(values)] for first in range(0, len(own), len(values))]

    def any(self, condition: bool) -> bool:
        """Return whether ``condition`` is true on any rank, the same on all ranks."""
        return self.everyone.sum_integers([condition])[0] > 0

    def from_first(self, value: int) -> int:
        """Return the first rank's ``value`` on every rank."""
        return self.everyone.sum_integers([value if self.is_first else 0])[0]

    def refuse_difference(self, what: str, own: str) -> None:
        """Raise on all ranks if a rank has other data than the first one.

        Args:
            what: what is compared, in the plural, for the message.
            own: this rank's value.

        Raises:
            UserError: this rank is the first that differs.
            RankError: another rank is.
        """
        digest = int(hashlib.sha256(own.encode()).hexdigest()[:15], 16)
        different = self.ranks_where(digest != self.from_first(digest))
        if different:
            line = (
                f"{named(different, self.size)}: {what} differ from those of rank 0; start all ranks with the same data"
            )
            raise self.reported_by(different[0], UserError(line))

    def reported_by(self, rank: int, error: HornbookError) -> HornbookError:
        """Return the error that each rank raises if all of them fail together; only ``rank`` prints it."""
        if self.rank == rank:
            self._agreed = error
        else:
            self._agreed = RankError(str(error), error.exit_code, is_reported=True)
        return self._agreed

    def was_reported(self, error: Exception) -> bool:
        """Return whether all ranks raise ``error`` together."""
        return error is self._agreed

    @contextmanager
    def session(self) -> Iterator[None]:
        """Disconnect from the other ranks at the end of the ``with`` block; an error makes them leave, too."""
        failed = True
        try:
            yield
            failed = False
        except (Exception, Terminated) as error:
            if (shared := self._report(error)) is error:
                raise
            raise shared from error
        finally:
            self.leave(failed=failed)

    def _report(self, error: Exception | Terminated) -> Exception | Terminated:
        """Report ``error``, unless all ranks have it, so that they leave as well; return the error to raise."""
        if self._watch is None or error is self._agreed or isinstance(error, RankError):
            return error
        if isinstance(error, HornbookError | Terminated):
            return self._watch.report(str(error), error.exit_code)
        return self._watch.report(f"{type(error).__name__}: {error}", HornbookError.exit_code)

    def explained(self) -> AbstractContextManager[None]:
        """Return a context that names a lost rank if communication fails because of it, including a layer's."""
        return explained(self._watch)

    def barrier(self) -> None:
        """Wait for all ranks, for up to 12 hours."""
        if self.size > 1:
            with explained(self._watch):
                dist.barrier(group=self._waiting)


@contextmanager
def _connecting(rank: int, size: int) -> Iterator[None]:
    """Explain a failure to connect in the ``with`` block.

    Raises:
        HornbookError: the ranks do not reach each other.
    """
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise HornbookError(
            f"rank {rank} of {size} cannot connect to the others: {reason}; if they are on several hosts, set "
            "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the network interface that connects them, such as eth0"
        ) from error


def axes_of(parallel: ParallelConfig, everyone: Ranks, device: torch.device, watch: Watch | None) -> Axes:
    """Return the axes of a run; ranks are numbered in the row-major order of ``Sizes``.

    Without ``watch``, the ranks are only counted, not connected, and there is no mesh.

    Raises:
        UserError: the sizes of the axes do not multiply to the number of ranks.
    """
    sizes = parallel.sizes(everyone.size)
    if everyone.size == sizes.replicate:
        return Axes(data=everyone, updaters=everyone)
    grid = torch.arange(everyone.size).view(sizes)
    axes = {"data": grid.permute(0, 3, 1, 2).flatten(2).flatten(0, 1)}
    is_cut = sizes.shard * sizes.tensor > 1
    if is_cut:
        axes |= {"tensor": grid.flatten(0, 2), "holders": grid.flatten(2).flatten(0, 1)}
    if sizes.pipeline > 1:
        axes |= {"pipeline": grid.flatten(1).t(), "updaters": grid.flatten(1)}
    ranks = {name: _ranks_along(groups.tolist(), everyone.rank, device, watch) for name, groups in axes.items()}
    ranks.setdefault("updaters", everyone)
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=Sizes._fields) if is_cut and watch else None
    if parallel.sequence_parallel:
        ranks["sequence"] = ranks["tensor"]
    return Axes(**ranks, mesh=mesh)


def _ranks_along(groups: list[list[int]], rank: int, device: torch.device, watch: Watch | None) -> Ranks:
    """Return the group that contains ``rank``; all ranks must call this together, to connect."""
    (own,) = (group for group in groups if rank in group)
    if watch is None:
        return Ranks(own.index(rank), len(own))
    tensors = host = _own_group(groups, rank)
    if device.type == "cuda":
        host = _own_group(groups, rank, backend="gloo")
    return Ranks(own.index(rank), len(own), tensors, host, watch)


def _own_group(groups: list[list[int]], rank: int, backend: str | None = None) -> dist.ProcessGroup:
    made = {rank in group: dist.new_group(group, timeout=_TIMEOUT, backend=backend) for group in groups}
    own: dist.ProcessGroup = made[True]
    return own
