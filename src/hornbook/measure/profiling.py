"""Profile a recipe's training step, with three kinds of steps after a warm-up.

::

    timed steps       no profiler: step time, phases, waiting, MFU
    profiled steps    PyTorch's profiler: time by module and operator, the trace
    one more step     all tensors tracked: memory over time, and at the peak

Batches are prepared in a background thread, as in a run. All ranks call these functions together.
"""

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from hornbook.config import LabelledConfig, Recipe
from hornbook.engine.build_training import build_loader, build_samples, build_training
from hornbook.engine.parallelize import compiles_blocks
from hornbook.engine.state import TrainState
from hornbook.engine.step import StepConfig, train_step
from hornbook.errors import UserError
from hornbook.measure.memory_timeline import MemoryTimeline
from hornbook.measure.module_times import PHASE, WAITING, module_ranges, module_times, operator_times
from hornbook.measure.scaling import exposed_of
from hornbook.parallel.device import dtype_name, memory_in_use, synchronize
from hornbook.parallel.ranks import blocked
from hornbook.parallel.world import World
from hornbook.run.utilization import Utilization, measure_utilization
from hornbook.samples.batches import Batch, Samples
from hornbook.samples.sources import complete, open_sources
from hornbook.storage.files import make_directory
from hornbook.storage.system import storage_errors
from hornbook.track.profile import Held, ModuleTime, OperatorTime, Profile, RankProfile
from hornbook.version import __version__
from hornbook.wording import counted

_WARM_UP = 3
_NO_MESSAGES = "6"
"""A log level of Kineto, which PyTorch's profiler uses, that suppresses its ``USDT:`` lines."""


@dataclass
class _Steps:
    """A training, and the times of its last step."""

    state: TrainState
    config: StepConfig
    batches: Iterator[list[Batch]]
    device: torch.device
    tokens: int = field(default=0, init=False)
    times: list[float] = field(default_factory=list, init=False)
    """Times at which the step begins, its batch is ready, its update begins and the step ends."""

    def make(self, also: Callable[[int], None] = lambda count: None, phase: Any = lambda name: nullcontext()) -> None:
        """Run a step; ``also`` is called before its update, ``phase`` returns a context for each phase."""
        self.times = [time.perf_counter()]
        with phase("data"):
            micro_batches = next(self.batches)
        self.times.append(time.perf_counter())
        update: AbstractContextManager[Any] = nullcontext()

        def on_gradients(count: int) -> None:
            nonlocal update
            self.times.append(time.perf_counter())
            also(count)
            update = phase("update")
            update.__enter__()

        result = train_step(self.state, micro_batches, self.config, on_gradients=on_gradients)
        synchronize(self.device)
        update.__exit__(None, None, None)
        self.tokens = result.size.tokens
        now = time.perf_counter()
        self.times += [now] * (4 - len(self.times))  # a skipped step has no update


def measure_profile(recipe: Recipe, world: World, output: Path, *, num_steps: int) -> Profile:
    """Profile the training step of ``recipe``; return the same profile on all ranks, and write each rank's trace.

    Args:
        recipe: with data, or with ``data.synthetic`` and a vocabulary.
        world: the ranks.
        output: folder for the traces, created if it does not exist.
        num_steps: number of timed steps, and of profiled steps.

    Raises:
        UserError: the recipe trains on labels, or its data do not match it.
        StorageError: the trace cannot be written.
    """
    if isinstance(recipe.objective, LabelledConfig):
        raise UserError(
            f"the profiler does not support labels, on which {recipe.objective.name!r} trains; add "
            "`objective.name='mlm'`, which differs only in the head"
        )
    sources = open_sources(recipe)
    recipe = complete(recipe, sources)
    samples = build_samples(recipe, sources, on_cpu=world.device.type == "cpu")
    make_directory(output)
    state, config = build_training(recipe, 1 << 30, world)
    with build_loader(recipe, samples, world, vocab_size=state.model.num_ids) as batches:
        steps = _Steps(state, config, batches, world.device)
        for _ in range(_WARM_UP):
            steps.make()
        utilization = measure_utilization(recipe, samples, world, state.model.compute_dtype)
        phases, rates = _timed(steps, world, num_steps)
        profiled = _profiled(steps, recipe, world, output, num_steps)
        memory = _memory(steps, world)
    waiting = phases.waiting if profiled.waiting is None else profiled.waiting
    rank = RankProfile(
        **phases._replace(waiting=waiting)._asdict(),
        idle=waiting / max(phases.compute, 1e-9) if world.pipeline.size > 1 else None,
        trace=profiled.trace,
        **memory._asdict(),
    )
    facts = _facts(recipe, samples, state, world, utilization, num_steps)
    return _merged(world, rank, profiled, rates, utilization, facts)


class _Phases(NamedTuple):
    """The seconds of a rank's phases; see `RankProfile`."""

    data: float
    compute: float
    update: float
    waiting: float


class _Memory(NamedTuple):
    """The memory of a rank; see `RankProfile`."""

    memory: tuple[tuple[float, int], ...]
    peak_bytes: int
    held: tuple[Held, ...]
    process_bytes: int | None


class _Profiled(NamedTuple):
    """The profiler's results for a rank."""

    modules: list[ModuleTime]
    operators: list[OperatorTime]
    seconds: float
    """Duration of a step."""
    waiting: float | None
    """Seconds in which a GPU only communicates; None on a CPU, where waits are timed without the profiler."""
    trace: str


def _timed(steps: _Steps, world: World, num_steps: int) -> tuple[_Phases, tuple[float, float]]:
    """Return the medians of a rank's phases, and of the step time and tokens per second of all ranks."""
    rows, slowest, rates = [], [], []
    for _ in range(num_steps):
        world.barrier()
        with blocked() as waits:
            steps.make()
        begin, there, update, end = steps.times
        rows.append((there - begin, update - there, end - update, sum(waits)))
        slowest.append(max(row[0] for row in world.gather([end - begin])))
        rates.append(steps.tokens / slowest[-1])
    phases = _Phases(*map(statistics.median, zip(*rows, strict=True)))
    return phases, (statistics.median(slowest), statistics.median(rates))


def _profiled(steps: _Steps, recipe: Recipe, world: World, output: Path, num_steps: int) -> _Profiled:
    """Run steps under PyTorch's profiler, and write their trace."""
    is_gpu, seconds = world.device.type == "cuda", []
    os.environ.setdefault("KINETO_LOG_LEVEL", _NO_MESSAGES)  # read when the first profiler of a process starts
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * is_gpu
    is_compiled = compiles_blocks(recipe, world.device)
    with module_ranges(steps.state.model, is_compiled=is_compiled), profile(activities=activities) as profiler:
        for _ in range(num_steps):
            world.barrier()
            with record_function(f"{PHASE}step"), blocked(lambda: record_function(WAITING)):
                steps.make(phase=lambda name: record_function(PHASE + name))
            seconds.append(steps.times[-1] - steps.times[0])
    trace = f"trace-rank-{world.rank}.json.gz" if world.size > 1 else "trace.json.gz"
    with storage_errors("write", output / trace):
        profiler.export_chrome_trace(str(output / trace))
    events = list(profiler.events())
    return _Profiled(
        modules=module_times(events, num_steps),
        operators=operator_times(events, num_steps),
        seconds=statistics.median(seconds),
        waiting=exposed_of(events) / num_steps if is_gpu else None,
        trace=trace,
    )


def _memory(steps: _Steps, world: World) -> _Memory:
    is_gpu = world.device.type == "cuda"
    if is_gpu:
        torch.cuda.reset_peak_memory_stats(world.device)
    timeline = MemoryTimeline(steps.state.model, steps.state.home)
    with timeline:
        steps.make(also=timeline.note_gradients)
    process = torch.cuda.max_memory_allocated(world.device) if is_gpu else memory_in_use(world.device)
    points, held = timeline.points(), timeline.at_peak()
    peak = max(size for _, size in points)
    return _Memory(memory=tuple(points), peak_bytes=peak, held=tuple(held), process_bytes=process)


def _merged(
    world: World,
    rank: RankProfile,
    profiled: _Profiled,
    rates: tuple[float, float],
    utilization: Utilization | None,
    facts: dict[str, str],
) -> Profile:
    """Return the profile of all ranks: each rank's numbers, and the times by module and operator summed over ranks."""
    everyone = [world.everyone.share((rank, profiled), at) for at in range(world.size)]
    by_module, by_operator = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for _, own in everyone:
        for totals, rows in ((by_module, own.modules), (by_operator, own.operators)):
            for name, *numbers in rows:
                totals[name] = [a + b for a, b in zip(totals[name] or [0.0] * len(numbers), numbers, strict=True)]
    step_seconds, tokens_per_second = world.everyone.share(rates, 0)
    used = utilization.at(tokens_per_second) if utilization else {"tflops": None, "mfu": None}
    found = [OperatorTime(name, *numbers) for name, numbers in by_operator.items()]
    return Profile(
        facts=facts,
        step_seconds=step_seconds,
        tokens_per_second=tokens_per_second,
        tflops=used["tflops"],
        mfu=used["mfu"],
        profiled_seconds=max(own.seconds for _, own in everyone),
        modules=tuple(ModuleTime(name, *numbers) for name, numbers in by_module.items()),
        operators=tuple(sorted(found, key=lambda operator: -operator.seconds)),
        ranks=tuple(found for found, _ in everyone),
    )


def _facts(
    recipe: Recipe,
    samples: Samples,
    state: TrainState,
    world: World,
    utilization: Utilization | None,
    num_steps: int,
) -> dict[str, str]:
    training, model, threads = recipe.training, state.model, counted(torch.get_num_threads(), "thread")
    kind = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else world.device.type
    return {
        "recipe": recipe.name,
        "model": f"{recipe.model.family}, {model.num_parameters:,} parameters, vocabulary {model.vocab_size:,}",
        "batch": f"{training.global_batch_size} {samples.noun}s of {recipe.sequence_length} tokens a step, "
        f"{training.micro_batch_size} at a time",
        "data": "random tokens" if recipe.data.synthetic else ", ".join(recipe.data.train),
        "device": f"{kind}, {counted(world.size, 'rank')} of {threads}, {dtype_name(model.compute_dtype)}",
        **({"peak rate": utilization.describe()} if utilization else {}),
        "measured": f"{num_steps} timed and {num_steps} profiled steps after {_WARM_UP}",
        "software": f"hornbook {__version__}, PyTorch {torch.__version__}",
    }
