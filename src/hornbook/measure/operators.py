"""Measure the time of a training step by operator, and the effect of other processes on the same cores."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from hornbook.measure.module_times import operator_times
from hornbook.measure.throughput import Step
from hornbook.storage.system import usable_cores

_FEWEST_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Operator:
    """The total time of an operator's calls in a step, without callees."""

    name: str
    calls: int
    seconds: float
    share: float
    """Share of the step's time."""


def operators_of(step: Step, device: torch.device) -> list[Operator]:
    """Return the operators of one step or, on a GPU, its kernels, longest first."""
    on_gpu = device.type == "cuda"
    step()
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]) as found:
        step()
    rows = operator_times(list(found.events() or ()), 1)
    total = sum(row.seconds for row in rows)
    return [
        Operator(name=row.name, calls=round(row.calls), seconds=row.seconds, share=row.seconds / total)
        for row in rows
        if row.seconds
    ]


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
