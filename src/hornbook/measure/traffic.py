"""What a rank sends to the others, and how long it waits for them, observed from outside.

::

    with Traffic() as traffic:
        step()                       traffic.sent    {"all_reduce": bytes, ...}
    waiting_share(step, device)      0.12            of the step's time, blocked in collectives and receives

Both see whatever goes through ``torch.distributed``: hornbook's own sums, ``fully_shard``'s gathers, the sends of a
pipeline schedule. A message counts as the bytes that a ring of its ranks sends (`hornbook.config.communication`).
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
"""Operator of PyTorch's -> the name here, and which argument is the rank's own part; others keep their name."""
_SENDS_NOTHING = ("recv_", "recv_any_source_", "barrier", "monitored_barrier_")


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the bytes that this rank sends inside the block.

    Every operation on tensors takes a few microseconds more meanwhile, so a step is not timed with it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sent: dict[str, float] = defaultdict(float)
        """Bytes by operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a message and let it pass."""
        name = func.overloadpacket.__name__
        if func.namespace == "c10d" and name not in _SENDS_NOTHING:
            operation, place = _OWN_PART.get(name, (name.strip("_"), 0))
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(args[place]))
            self.sent[operation] += factor(operation, _num_ranks(args)) * num_bytes
        return func(*args, **(kwargs or {}))


def waiting_share(step: Callable[[], object], device: torch.device) -> float:
    """Make a step and return the share of its time in which nothing is computed since communication is under way.

    On a CPU that is the time for which the process is blocked. On a GPU, which computes and communicates at once, it is
    the time of NCCL's kernels, waiting for other ranks included, during which no other kernel runs.
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
    """Return the seconds in which a GPU only communicates, out of the events of PyTorch's profiler."""
    spans = [
        (event.name, event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
    return exposed(spans) * 1e-6


def exposed(spans: Iterable[tuple[str, float, float]]) -> float:
    """Return the time in which only communication runs.

    Args:
        spans: name, begin and end of what a GPU runs; they may overlap. NCCL's begin with ``nccl``.
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
