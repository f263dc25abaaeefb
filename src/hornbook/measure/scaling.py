"""Measure how a training step scales to several ranks: speed, efficiency, traffic, waiting.

::

    each round      rank 0 alone: a step with 1/n of the global batch, while the others wait
                    all n ranks: a step with the whole global batch
    efficiency      tokens/s of n ranks / (n · tokens/s of rank 0 alone)
    more steps      what each rank sends, and how long it waits

The two alternate, so that other load affects both, with the same threads in each process; results are medians. The
single rank holds the whole model. As in `hornbook.measure.throughput`, steps include making batches of random tokens.

``Traffic`` and ``waiting_share`` observe all communication through ``torch.distributed``: hornbook's sums,
``fully_shard``'s gathers, the sends of pipeline schedules. A collective counts as the bytes that a rank of a ring sends
(`hornbook.config.communication`).
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from hornbook.config import ParallelConfig, Recipe
from hornbook.config.communication import Load, bytes_sent, factor
from hornbook.engine.build_training import build_training
from hornbook.engine.step import train_step
from hornbook.measure.throughput import Throughput, hornbook_step, synthetic_loader, timed
from hornbook.parallel.device import synchronize
from hornbook.parallel.ranks import blocked
from hornbook.parallel.world import World
from hornbook.samples.batches import Batch

_WARM_UP = 2
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


@dataclass(frozen=True, kw_only=True)
class RankTraffic:
    """The communication of one rank in a step."""

    sent: dict[str, float]
    """Measured bytes by operation."""
    formula: dict[str, float]
    """Predicted bytes by operation (`hornbook.config.communication`); empty for custom models."""
    waiting: float
    """Share of the time in which the rank waits for communication; median."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The results of `measure_scaling`."""

    together: Throughput
    """Speed of all ranks; a step takes as long as on the slowest."""
    alone: Throughput | None
    """Speed of one process with 1/n of the global batch; None if it was not measured."""
    efficiency: float | None
    """Tokens per second of all ranks divided by n times those of one process."""
    ranks: list[RankTraffic]


def measure_scaling(recipe: Recipe, world: World, *, rounds: int, with_alone: bool = True) -> Scaling:
    """Time steps of all ranks and of one process, alternating, in ``rounds`` rounds after two warm-up rounds.

    All ranks call this together and get the same result.

    Args:
        recipe: its ``model.vocab_size`` must be set.
        world: the ranks.
        rounds: measured steps of each.
        with_alone: whether to time one process as well, which must be able to hold the whole model.
    """
    is_alone = with_alone and world.is_first
    alone = hornbook_step(_share_of(recipe, world.size), World(device=world.device)) if is_alone else None
    state, config = build_training(recipe, 1 << 30, world)
    loader = synthetic_loader(recipe, world)

    def step() -> int:
        return train_step(state, next(loader), config).size.tokens

    seconds, rates = [], []
    for _ in range(_WARM_UP + rounds):
        taken = timed(alone, world.device) if alone else (0.0, 0.0)
        world.barrier()
        tokens, own_seconds = timed(step, world.device)
        slowest = max(row[0] for row in world.gather([own_seconds]))
        seconds.append((slowest, taken[1]))
        rates.append((tokens / slowest, taken[0] / taken[1] if alone else 0.0))
    medians = [statistics.median(values) for values in zip(*seconds[_WARM_UP:], strict=True)]
    medians += [statistics.median(values) for values in zip(*rates[_WARM_UP:], strict=True)]
    step_seconds, alone_seconds, rate, alone_rate = world.gather(medians)[0]
    waiting = statistics.median(waiting_share(step, world.device) for _ in range(rounds))
    micro_batches = next(loader)
    with Traffic() as traffic:
        train_step(state, micro_batches, config)
    formula = _formula(recipe, world, micro_batches, state.model.compute_dtype)
    return Scaling(
        together=Throughput(step_seconds=step_seconds, tokens_per_second=rate),
        alone=Throughput(step_seconds=alone_seconds, tokens_per_second=alone_rate) if with_alone else None,
        efficiency=rate / (world.size * alone_rate) if with_alone else None,
        ranks=_on_all_ranks(world, traffic.sent, formula, waiting),
    )


def _share_of(recipe: Recipe, num_ranks: int) -> Recipe:
    """Return the recipe for one process, with 1/n of the global batch in whole micro-batches, at least one."""
    training = recipe.training
    share = max(1, round(training.global_batch_size / num_ranks / training.micro_batch_size))
    training = replace(training, global_batch_size=share * training.micro_batch_size)
    return replace(recipe, training=training, parallel=ParallelConfig())


def _formula(
    recipe: Recipe, world: World, micro_batches: Sequence[Batch], compute_dtype: torch.dtype
) -> dict[str, float]:
    tokens = [batch["tokens"].numel() for batch in micro_batches]
    scored = [batch.get("predictions", batch["tokens"]).numel() for batch in micro_batches]
    load = Load(
        num_micro_batches=len(tokens),
        tokens=max(tokens) if world.pipeline.size > 1 else statistics.mean(tokens),
        scored=statistics.mean(scored),
        itemsize=compute_dtype.itemsize,
        gathered=compute_dtype.itemsize if world.device.type == "cuda" else 4,
    )
    return bytes_sent(recipe, world.size, world.rank, load)


def _on_all_ranks(world: World, sent: dict[str, float], formula: dict[str, float], waiting: float) -> list[RankTraffic]:
    """Return each rank's numbers; the operations are the same on all ranks, but may send nothing on some."""
    names = sorted({"all_reduce", "all_gather", "reduce_scatter", "send"} | {*sent})
    rows = world.gather(
        [*(sent.get(name, 0.0) for name in names), *(formula.get(name, 0.0) for name in names), waiting]
    )
    found = []
    for row in rows:
        observed, computed = (
            {name: number for name, number in zip(names, part, strict=True) if number}
            for part in (row[: len(names)], row[len(names) : -1])
        )
        found.append(RankTraffic(sent=observed, formula=computed, waiting=row[-1]))
    return found


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
