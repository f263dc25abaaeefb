"""Measure the bytes that a rank sends and the time that it waits for others.

::

    with Traffic() as traffic:
        step()                       traffic.sent    {"all_reduce": bytes, ...}
    waiting_share(step, device)      0.12            of the step's time, blocked in collectives and receives

Both observe all communication through ``torch.distributed``: hornbook's sums, ``fully_shard``'s gathers, the sends of
pipeline schedules. A collective counts as the bytes that a rank of a ring sends (`hornbook.config.communication`).
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from hornbook.config.communication import factor
from hornbook.parallel.device import synchronize
from hornbook.parallel.waits import blocked

_OWN_PART = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 1),
    "allgather_": ("all_gather", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 0),
    "reduce_scatter_": ("reduce_scatter", 0),
    "send": ("send", 0),
}
"""PyTorch's operator -> its name here, and the index of the argument with the rank's part; others keep their name."""
_SENDS_NOTHING = ("recv_", "recv_any_source_", "barrier", "monitored_barrier_")


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context manager that sums the bytes that this rank sends.

    It slows down every operation on tensors by a few microseconds, so do not time the step.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sent: dict[str, float] = defaultdict(float)
        """Sent bytes by operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count the bytes if it communicates."""
        name = func.overloadpacket.__name__
        if func.namespace == "c10d" and name not in _SENDS_NOTHING:
            operation, place = _OWN_PART.get(name, (name.strip("_"), 0))
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(args[place]))
            self.sent[operation] += factor(operation, _num_ranks(args)) * num_bytes
        return func(*args, **(kwargs or {}))


def waiting_share(step: Callable[[], object], device: torch.device) -> float:
    """Run a step and return the share of its time in which only communication is in progress.

    On a CPU, that is the time for which the process is blocked. On a GPU, which computes and communicates concurrently,
    it is the time of NCCL's kernels, including waits for other ranks, during which no other kernel runs.
    """
    start = time.perf_counter()
    if device.type == "cuda":
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            step()
            synchronize(device)
            seconds = time.perf_counter() - start
        return exposed_of(profiler.events()) / seconds
    with blocked() as waits:
        step()
    return sum(waits) / (time.perf_counter() - start)


def exposed_of(events: Iterable[Any]) -> float:
    """Return the seconds in which a GPU only communicates, from the events of PyTorch's profiler."""
    spans = [
        (event.name, event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
    return exposed(spans) * 1e-6


def exposed(spans: Iterable[tuple[str, float, float]]) -> float:
    """Return the time in which only communication runs.

    Args:
        spans: name, begin and end of kernels, which may overlap; names of NCCL's begin with ``nccl``.
    """
    changes = sorted(
        (time, change, name.startswith("nccl"))
        for name, *ends in spans
        for time, change in zip(ends, (1, -1), strict=True)
    )
    running, last, total = [0, 0], 0.0, 0.0
    for now, change, is_communication in changes:
        if running[True] and not running[False]:
            total += now - last
        running[is_communication] += change
        last = now
    return total


def _tensors(value: Any) -> Iterable[Tensor]:
    return (value,) if isinstance(value, Tensor) else (tensor for entry in value for tensor in _tensors(entry))


def _num_ranks(args: Any) -> int:
    groups = (value for value in args if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()))
    return dist.ProcessGroup.unbox(next(groups)).size()
