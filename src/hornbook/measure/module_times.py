"""Compute the time of a step by module and by operator from the events of PyTorch's profiler.

::

    hooks of every module ─► ranges "module blocks.0.attention" around its forward pass ─► forward seconds
    operators inside them ─► sequence numbers of the autograd nodes that they create
    nodes of the backward pass, by these numbers ─────────────────────────────────────────► backward seconds

On a GPU, times are those of the kernels that an operator launches; on a CPU, those of the operator. ``neighbor_cost``
measures the effect of other processes on the same cores.
"""

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from hornbook.measure.throughput import Step
from hornbook.storage.system import usable_cores
from hornbook.track.profile import ModuleTime, OperatorTime

PHASE, MODULE, WAITING = "phase ", "module ", "waiting for ranks"
"""Prefixes of the names of ranges, and the name of ranges in which a rank waits."""
_NODE = "autograd::engine::evaluate_function: "
OUTSIDE = "(outside modules)"
_FEWEST_SECONDS = 1.0


@contextmanager
def module_ranges(model: nn.Module, *, is_compiled: bool) -> Iterator[None]:
    """Mark the forward pass of every module in the ``with`` block; for compiled models, only of the model's parts."""
    handles, open_ranges = [], list[Any]()

    def begin(name: str) -> None:
        open_ranges.append(record_function(MODULE + name))
        open_ranges[-1].__enter__()

    def end() -> None:
        open_ranges.pop().__exit__(None, None, None)

    for name, module in _marked(model, is_compiled=is_compiled):
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: begin(name), prepend=True))
        handles.append(module.register_forward_hook(lambda *_: end(), always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _marked(model: nn.Module, *, is_compiled: bool) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        is_part = name in ("embedding", "head") or (name.startswith("blocks.") and name.count(".") == 1)
        if is_part or (name and not is_compiled and not isinstance(module, nn.ModuleList)):
            yield name, module


def module_times(events: Sequence[Any], num_steps: int) -> list[ModuleTime]:
    """Return the time of each module in a step, without its submodules, in the order of the forward pass.

    Args:
        events: of the profiler, for several steps with ``module_ranges``.
        num_steps: number of these steps.
    """
    own = list(_on_host(events))
    makers = _makers(own)
    totals: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for event in own:
        if event.name.startswith(MODULE):
            name, kind = _module_of(event), "recomputed" if _inside(_NODE, event) else "forward"
        elif event.name.startswith(_NODE):
            name, kind = makers.get(event.sequence_nr, OUTSIDE), "backward"
        else:
            continue
        waiting = sum(map(_seconds, _nearest(event, WAITING)))
        inside = sum(map(_seconds, _nearest(event, MODULE)))
        totals[name][kind] += (_seconds(event) - inside - waiting) / num_steps
        totals[name]["waiting"] += waiting / num_steps
        totals[name]["calls"] += (kind == "forward") / num_steps
    return [ModuleTime(name, *(row[key] for key in ModuleTime._fields[1:])) for name, row in totals.items()]


def _makers(events: Iterable[Any]) -> dict[int, str]:
    """Return the module whose forward pass created each node of the backward pass, by the node's number.

    Operators have the number of the next node to be created, so the last operator with a number has created the node.
    """
    made: dict[int, tuple[float, str]] = {}
    for event in events:
        number, start = event.sequence_nr, event.time_range.start
        is_forward = number >= 0 and not event.name.startswith(_NODE) and not _inside(_NODE, event)
        if is_forward and start >= made.get(number, (0.0, ""))[0]:
            made[number] = (start, _module_of(event))
    return {number: name for number, (_, name) in made.items()}


def operator_times(events: Sequence[Any], num_steps: int) -> list[OperatorTime]:
    """Return the time of each operator or, on a GPU, kernel in a step, without callees, longest first."""
    kernels = [event for event in events if event.device_type.name != "CPU" and not event.is_user_annotation]
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in kernels or _on_host(events):
        if event.name.startswith((PHASE, MODULE, _NODE)) or event.is_user_annotation:
            continue
        seconds = event.time_range.elapsed_us() if kernels else event.self_cpu_time_total
        totals[event.name][0] += 1e-6 * seconds / num_steps
        totals[event.name][1] += 1 / num_steps
    found = [OperatorTime(name=name, seconds=total, calls=calls) for name, (total, calls) in totals.items()]
    return sorted(found, key=lambda operator: -operator.seconds)


def _on_host(events: Iterable[Any]) -> Iterator[Any]:
    return (event for event in events if event.device_type.name == "CPU")


def _seconds(event: Any) -> float:
    """Return the seconds of an event with its callees: those of its kernels, if it launched any, otherwise its own."""
    return 1e-6 * float(event.device_time_total or event.cpu_time_total)


def _ancestors(event: Any) -> Iterator[Any]:
    while event is not None:
        yield event
        event = event.cpu_parent


def _module_of(event: Any) -> str:
    """Return the innermost module whose forward pass contains an event."""
    names = (above.name.removeprefix(MODULE) for above in _ancestors(event) if above.name.startswith(MODULE))
    return next(names, OUTSIDE)


def _inside(name: str, event: Any) -> bool:
    """Return whether an event is inside another one whose name begins with ``name``."""
    return any(above.name.startswith(name) for above in _ancestors(event.cpu_parent))


def _nearest(event: Any, name: str) -> Iterator[Any]:
    """Yield the ranges inside an event whose names begin with ``name``, except those inside its modules."""
    for child in event.cpu_children:
        if child.name.startswith(name):
            yield child
        elif not child.name.startswith(MODULE):
            yield from _nearest(child, name)


def operators_of(step: Step, device: torch.device) -> list[OperatorTime]:
    """Return the operators of one step or, on a GPU, its kernels, longest first."""
    on_gpu = device.type == "cuda"
    step()
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]) as found:
        step()
    return [row for row in operator_times(list(found.events() or ()), 1) if row.seconds]


@dataclass(frozen=True, kw_only=True)
class NeighborCost:
    """The slowdown of a step by other processes, beyond their share of the processor."""

    neighbors: int
    """Number of busy processes, one per core."""
    alone: float
    """Tokens per second of processor time, without other processes."""
    beside: float
    """The same with busy processes."""
    loss: float
    """``1 - beside / alone``."""


def neighbor_cost(step: Step) -> NeighborCost:
    """Time a step without and with a busy process on each core, by processor time."""
    cores = usable_cores()
    alone = _tokens_per_processor_second(step)
    with _busy_processes(cores):
        beside = _tokens_per_processor_second(step)
    return NeighborCost(neighbors=cores, alone=alone, beside=beside, loss=1.0 - beside / alone)


def _tokens_per_processor_second(step: Step) -> float:
    tokens, start = 0, time.process_time()
    while (taken := time.process_time() - start) < _FEWEST_SECONDS:
        tokens += step()
    return tokens / taken


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
