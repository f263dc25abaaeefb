"""Where the time of a training step goes, by operator, and what a neighbor on the same cores costs it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from hornbook.measure.throughput import Step
from hornbook.storage.system import usable_cores

_FEWEST_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Operator:
    """What all calls of an operator take in a step, without those that it makes itself."""

    name: str
    calls: int
    seconds: float
    share: float
    """Of the step."""


def operators_of(step: Step, device: torch.device) -> list[Operator]:
    """Return the operators of one step, the longest first, by processor time, or the GPU's on one."""
    on_gpu = device.type == "cuda"
    step()
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]) as found:
        step()
    events = found.key_averages()
    seconds = {
        event.key: (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e6 for event in events
    }
    total = sum(seconds.values())
    rows = [
        Operator(name=event.key, calls=event.count, seconds=seconds[event.key], share=seconds[event.key] / total)
        for event in events
        if seconds[event.key]
    ]
    return sorted(rows, key=lambda row: row.seconds, reverse=True)


@dataclass(frozen=True, kw_only=True)
class NeighborCost:
    """What the step loses beside other work, beyond the share of the processor that it gets."""

    neighbors: int
    """Busy processes, one a core."""
    alone: float
    """Tokens a second of processor time."""
    beside: float
    loss: float
    """``1 - beside / alone``."""


def neighbor_cost(step: Step) -> NeighborCost:
    """Time a step alone and beside one busy process on each core, by processor time."""
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
