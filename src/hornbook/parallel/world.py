"""The ranks of a run, and the few sums that data parallel training needs.

Each rank holds the whole model and takes its share of every global batch. Losses are divided by *global* counts before
the backward pass, so gradients are simply added over ranks::

    counts --sum--> divide --> backward --> gradients --sum--> the same update on every rank

One process is a world of one: nothing is sent. Under ``torchrun`` tensors go through NCCL on GPUs and gloo on CPUs, and
numbers that the host knows always through gloo: a GPU would add them up only after all that it was asked to do before.
At a barrier the others wait for what the first rank does alone, such as writing a large checkpoint, so barriers have a
group with a time-out of hours. A rank that is lost is noticed by `watch`, which tells it from one that is busy.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from hornbook.parallel.watch import Watch

_BUCKET_ELEMENTS = 1 << 24
_TIMEOUT = timedelta(minutes=10)
_PATIENCE = timedelta(hours=12)
"""At a barrier."""


class World:
    """The processes of one run; ``World()`` is a run of one process.

    Args:
        rank, size: which of them this is, and of how many.
        device: of this one's tensors.
        host: sums the host's own numbers, so that no device is waited for; None for one process.
        waiting: waits for hours; None for one process.
        watch: over the other ranks; None for one process.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        device: torch.device | None = None,
        host: dist.ProcessGroup | None = None,
        waiting: dist.ProcessGroup | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.device = device or torch.device("cpu")
        self._host = host
        self._waiting = waiting
        self._watch = watch

    @classmethod
    def join(cls, device: torch.device) -> "World":
        """Join the ranks that ``torchrun`` started, or return a world of one process."""
        if not os.environ.keys() >= {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}:
            return cls(device=device)
        store, rank, size = next(rendezvous("env://", timeout=_TIMEOUT))
        # torchrun may keep the store over a restart, and what the dead ranks left in it would be taken for the living
        store = PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        ranks = {"store": store, "rank": rank, "world_size": size, "timeout": _TIMEOUT}
        if device.type == "cuda":
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", device_id=device, **ranks)
            host = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        else:
            dist.init_process_group("gloo", **ranks)
            host = dist.group.WORLD
        waiting = dist.new_group(backend="gloo", timeout=_PATIENCE)
        return cls(rank, size, device, host, waiting, Watch(store, rank, size))

    def leave(self) -> None:
        """Close the connections to the other ranks."""
        if self._watch is not None:
            self._watch.end()
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def is_first(self) -> bool:
        """True on the one rank that writes files and speaks."""
        return self.rank == 0

    def sum_integers(self, values: Sequence[int]) -> list[int]:
        """Return the sums over all ranks; the device is not waited for."""
        if self.size == 1:
            return list(values)
        return [int(value) for value in self._sum_on_host(values, torch.int64)]

    def sum_floats(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, added up in double precision; the device is not waited for."""
        if self.size == 1:
            return list(values)
        return [float(value) for value in self._sum_on_host(values, torch.float64)]

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks of ``tensor``, which is written in place."""
        if self.size > 1:
            with self._explained():
                dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Add up the gradients of all ranks, in place, in flat buckets of at most 64 MiB or one tensor."""
        if self.size == 1:
            return
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            with self._explained():
                dist.all_reduce(flat)
            parts = torch.split(flat, [gradient.numel() for gradient in bucket])
            for gradient, part in zip(bucket, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def barrier(self) -> None:
        """Wait for all ranks, hours if need be."""
        if self.size > 1:
            with self._explained():
                dist.barrier(group=self._waiting)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Name the rank that was lost, if that is why a sum inside the block fails."""
        try:
            yield
        except RuntimeError as error:  # gloo's own has no other type
            if self._watch is None:
                raise
            raise self._watch.explain(error) from error

    def _sum_on_host(self, values: Sequence[float], dtype: torch.dtype) -> list[float]:
        total = torch.tensor(values, dtype=dtype)
        with self._explained():
            dist.all_reduce(total, group=self._host)
        sums: list[float] = total.tolist()
        return sums


def _buckets(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    buckets: list[list[Tensor]] = [[]]
    size = 0
    for gradient in gradients:
        if size and size + gradient.numel() > _BUCKET_ELEMENTS:
            buckets.append([])
            size = 0
        buckets[-1].append(gradient)
        size += gradient.numel()
    return buckets
