"""The processes of a run: where this one stands, and what all of them do together.

A run's ranks lie along axes (`hornbook.config.parallel`). ``world.data`` is that of data parallelism: its ranks take
shares of every global batch and add up counts, means and gradients. ``world.tensor`` is that of tensor parallelism: its
ranks compute the same batch with a part of each layer. ``world.pipeline`` is that of pipeline parallelism: its ranks
compute the same batch with some of the layers each. ``world.holders`` together hold one copy of the weights, or of
those of a stage. Votes, barriers and the election of the rank that writes concern all ranks. Losses are divided by
*global* counts before the backward pass, so gradients are simply added::

    counts --data.sum--> divide --> backward --> gradients --data.sum--> the same update on every rank

One process is a world of one: nothing is sent. Under ``torchrun`` tensors go through NCCL on GPUs and gloo on CPUs, and
numbers that the host knows always through gloo: a GPU would add them up only after all that it was asked to do before.
At a barrier the others wait for what the first rank does alone, such as writing a large checkpoint, so barriers have a
group with a time-out of hours. A lost rank is noticed by `watch`, which tells it from a busy one.
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
from hornbook.errors import HornbookError, RankError, UserError
from hornbook.parallel import launched
from hornbook.parallel.meeting import meet, named, open_store
from hornbook.parallel.ranks import Ranks, explained
from hornbook.parallel.watch import Watch

_TIMEOUT = timedelta(minutes=10)
_PATIENCE = timedelta(hours=12)
"""At a barrier."""


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The ranks along the axes of a run other than that of all ranks; ``Axes()`` is one process."""

    data: Ranks = field(default_factory=Ranks)
    """Those that take shares of each global batch."""
    tensor: Ranks = field(default_factory=Ranks)
    """Those that compute the same batch with a part of each layer."""
    sequence: Ranks = field(default_factory=Ranks)
    """Those that hold a slice of the tokens each between the layers: those of ``tensor``, or a single one."""
    pipeline: Ranks = field(default_factory=Ranks)
    """Those that compute the same batch with some of the layers each."""
    holders: Ranks = field(default_factory=Ranks)
    """Those that together hold one copy of the weights, or of those of a stage."""
    mesh: DeviceMesh | None = None
    """All ranks as PyTorch names them, by the fields of ``Sizes``; None where no weight is cut."""


class World:
    """All processes of a run; ``World()`` is a run of one process.

    Args:
        everyone: all ranks.
        axes: of the run; None for data parallelism alone.
        device: of this rank's tensors.
        waiting: the group that waits for hours at a barrier; None for one process.
        watch: over the other ranks; None for one process.

    Attributes:
        everyone: all ranks, along no axis.
        rank: number of this process, from 0.
        size: number of processes.
        is_first: whether this is the one rank that writes files and speaks.
    """

    aside: "World"
    """The same ranks over connections of their own, for a thread that saves while the main one trains."""

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
        axes = axes or Axes(data=self.everyone)
        self.data, self.tensor, self.pipeline = axes.data, axes.tensor, axes.pipeline
        self.sequence, self.holders, self.mesh = axes.sequence, axes.holders, axes.mesh
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
        """Join the ranks that ``torchrun`` started, or return a world of one process.

        Args:
            device: of this rank's tensors.
            parallel: the axes; None for data parallelism alone.
            recipe: as a document, which must be the same on all ranks.

        Raises:
            UserError: the axes do not multiply to the number of ranks.
            RankError: a rank did not come, or has another recipe.

        No process group is made then.
        """
        parallel = parallel or ParallelConfig()
        parallel.sizes(launched.num_ranks())
        if not launched.is_rank():
            return cls(device=device)
        rank, size = launched.rank(), launched.num_ranks()
        store = open_store(rank, size)
        meet(store, rank, size, recipe or {})
        options: dict[str, Any] = {"store": store, "rank": rank, "world_size": size, "timeout": _TIMEOUT}
        if device.type == "cuda":
            torch.cuda.set_device(device)
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
        """Return the same ranks along other axes; all ranks call this together.

        Raises:
            UserError: the axes do not multiply to the number of ranks.
        """
        parallel.sizes(self.size)
        if self._watch is None:
            return World(device=self.device)
        axes = axes_of(parallel, self.everyone, self.device, self._watch)
        world = World(self.everyone, axes, self.device, self._waiting, self._watch)
        world.aside = self.aside
        return world

    def leave(self) -> None:
        """Close the connections to the other ranks."""
        if self._watch is not None:
            self._watch.end()
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def is_sharded(self) -> bool:
        """Whether weights are cut over data-parallel ranks; their gradients are then summed as they are made."""
        return self.holders.size > self.tensor.size

    def num_copies(self, axes: Collection[str]) -> int:
        """Return how many of ``holders`` hold the same part of a tensor that is cut over ``axes``."""
        sizes = {"shard": self.holders.size // self.tensor.size, "tensor": self.tensor.size}
        return math.prod(size for name, size in sizes.items() if name not in axes)

    def holds_first(self, axes: Collection[str]) -> bool:
        """Tell whether no earlier rank of its stage holds the same part of a tensor that is cut over ``axes``."""
        if self.mesh is None:
            return self.data.rank == 0
        coordinate = dict(zip(Sizes._fields, self.mesh.get_coordinate() or (), strict=True))
        return not any(number for name, number in coordinate.items() if name not in {"pipeline", *axes})

    def ranks_where(self, condition: bool) -> list[int]:
        """Return the ranks on which ``condition`` is true, the same on all of them."""
        votes = [condition and rank == self.rank for rank in range(self.size)]
        return [rank for rank, count in enumerate(self.everyone.sum_integers(votes)) if count]

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return the ``values`` of each rank, of all the same number, the same on all ranks."""
        own = [value if rank == self.rank else 0.0 for rank in range(self.size) for value in values]
        everywhere = self.everyone.sum_floats(own)
        return [everywhere[first : first + len(values)] for first in range(0, len(own), len(values))]

    def any(self, condition: bool) -> bool:
        """Tell whether ``condition`` is true on some rank, the same on all of them."""
        return self.everyone.sum_integers([condition])[0] > 0

    def from_first(self, value: int) -> int:
        """Return the first rank's ``value`` on every rank."""
        return self.everyone.sum_integers([value if self.is_first else 0])[0]

    def refuse_difference(self, what: str, own: str) -> None:
        """Let all ranks leave together if a rank has other data than the first one.

        Raises:
            UserError: this rank has.
            RankError: another one has.
        """
        digest = int(hashlib.sha256(own.encode()).hexdigest()[:15], 16)
        different = self.ranks_where(digest != self.from_first(digest))
        if different:
            line = (
                f"{named(different, self.size)}: {what} differ from those of rank 0; start all ranks with the same data"
            )
            raise self.told_by(different[0], UserError(line))

    def told_by(self, rank: int, error: HornbookError) -> HornbookError:
        """Return what each rank raises where all of them fail together: ``rank`` prints the line, once for all."""
        if self.rank == rank:
            self._agreed = error
        else:
            self._agreed = RankError(str(error), error.exit_code, is_told=True)
        return self._agreed

    def was_told(self, error: Exception) -> bool:
        """Tell whether all ranks raise ``error`` together."""
        return error is self._agreed

    @contextmanager
    def session(self) -> Iterator[None]:
        """Leave the other ranks at the end of the block; an error of this rank lets them leave, too."""
        try:
            yield
        except Exception as error:
            if (told := self._leaving(error)) is error:
                raise
            raise told from error
        finally:
            self.leave()

    def _leaving(self, error: Exception) -> Exception:
        """Return what this rank raises when ``error`` ends it, once it has told the other ranks to leave as well."""
        if self._watch is None or error is self._agreed or isinstance(error, RankError):
            return error
        if isinstance(error, HornbookError):
            return self._watch.tell(str(error), error.exit_code)
        return self._watch.tell(f"{type(error).__name__}: {error}", HornbookError.exit_code)

    def explained(self) -> AbstractContextManager[None]:
        """Name the rank that was lost, if that is why communication inside the block fails, a layer's own included."""
        return explained(self._watch)

    def barrier(self) -> None:
        """Wait for all ranks, hours if need be."""
        if self.size > 1:
            with explained(self._watch):
                dist.barrier(group=self._waiting)


def axes_of(parallel: ParallelConfig, everyone: Ranks, device: torch.device, watch: Watch) -> Axes:
    """Return the axes of a run whose ranks are numbered stage by stage, replica by replica, along ``Sizes``."""
    sizes = parallel.sizes(everyone.size)
    if everyone.size == sizes.replicate:
        return Axes(data=everyone)
    grid = torch.arange(everyone.size).view(sizes)
    axes = {"data": grid.permute(0, 3, 1, 2).flatten(2).flatten(0, 1)}
    is_cut = sizes.shard * sizes.tensor > 1
    if is_cut:
        axes |= {"tensor": grid.flatten(0, 2), "holders": grid.flatten(2).flatten(0, 1)}
    if sizes.pipeline > 1:
        axes["pipeline"] = grid.flatten(1).t()
    ranks = {name: _ranks_along(groups.tolist(), everyone.rank, device, watch) for name, groups in axes.items()}
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=Sizes._fields) if is_cut else None
    if parallel.sequence_parallel:
        ranks["sequence"] = ranks["tensor"]
    return Axes(**ranks, mesh=mesh)


def _ranks_along(groups: list[list[int]], rank: int, device: torch.device, watch: Watch) -> Ranks:
    """Return the one of several groups of ranks that ``rank`` is in; all ranks call this together."""
    (own,) = (group for group in groups if rank in group)
    tensors = host = _own_group(groups, rank)
    if device.type == "cuda":
        host = _own_group(groups, rank, backend="gloo")
    return Ranks(own.index(rank), len(own), tensors, host, watch)


def _own_group(groups: list[list[int]], rank: int, backend: str | None = None) -> dist.ProcessGroup:
    made = {rank in group: dist.new_group(group, timeout=_TIMEOUT, backend=backend) for group in groups}
    own: dist.ProcessGroup = made[True]
    return own
