"""Measure memory and time of a few real steps, and compare them with the prediction of `hornbook.plan`.

::

    on a CPU     sum of all allocations and releases that PyTorch's allocator reports to its profiler
    on a GPU     the allocator's peak

Both count only tensors; the interpreter and the code of libraries take some hundreds of MiB in addition.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from hornbook.config import Recipe
from hornbook.engine.build_training import build_training
from hornbook.engine.phased import Phased
from hornbook.engine.phased_home import PhasedHome
from hornbook.engine.state import TrainState
from hornbook.engine.step import StepResult, train_step
from hornbook.measure.throughput import synthetic_loader
from hornbook.ops.sequence_groups import group_sequences
from hornbook.parallel.device import synchronize
from hornbook.parallel.ranks import blocked, local
from hornbook.parallel.world import World
from hornbook.plan.attention import Group, Tokens
from hornbook.plan.memory import Memory, full_tokens, memory_of
from hornbook.run.planning import compute_on, plan_here
from hornbook.run.utilization import compute_clock
from hornbook.samples.batches import Batch

TOLERANCES: Final = {"resident": 0.03, "phased": 0.05}
"""Maximum relative error of a prediction that `hornbook plan --check` accepts, by execution."""
_STEPS = 2
_TIMED_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Check:
    """The predicted and measured memory of one rank and time of a step."""

    predicted: Memory
    measured: int
    """Peak in bytes."""
    step_seconds: float
    """Time of the fastest of three steps, without making batches; for one process on a CPU, processor time divided by
    threads, so that other processes do not count; ranks wait for each other, so theirs is that of the wall."""
    predicted_seconds: float
    """Prediction for the same number of tokens, from the rate of a product that was measured just before, by processor
    time, and the plan's efficiency."""

    @property
    def error(self) -> float:
        """The relative error of the predicted memory."""
        return self.predicted.peak / self.measured - 1.0


def check_steps(recipe: Recipe, world: World) -> Check:
    """Run a few steps on random tokens and return measured and predicted memory and time.

    Args:
        recipe: its ``model.vocab_size`` must be set.
        world: has the device and this rank's share.

    Raises:
        UserError: the recipe trains on labels, which random tokens do not have.
    """
    state, config = build_training(recipe, 1 << 20, world)
    loader = synthetic_loader(recipe, world)
    # The largest micro-batch last: it finds the gradients of the others, as the plan has it.
    steps = [sorted(next(loader), key=lambda batch: batch["tokens"].numel()) for _ in range(_STEPS)]
    if world.pipeline.size > 1:  # a stage holds several at once, which the plan takes to be as large as the largest
        steps = [[batches[-1]] * len(batches) for batches in steps]

    def run() -> None:
        for micro_batches in steps:
            train_step(state, micro_batches, config)

    if isinstance(config.executor, Phased):
        _let_transfers_take_longest(config.executor)
    before = _bytes_of(state)
    if world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(world.device)
        run()
        measured = torch.cuda.max_memory_allocated(world.device)
    else:
        measured = before + allocated_at_peak(run)
    compute = compute_on(recipe, world.device)
    shapes = _tokens_of(recipe, state, steps)
    found = (memory_of(recipe, world.size, world.rank, compute=compute, tokens=tokens) for tokens in shapes)
    predicted = max(found, key=lambda memory: memory.peak)
    rates = [_time(partial(train_step, state, next(loader), config), world) for _ in range(_TIMED_STEPS)]
    num_tokens, seconds = min(rates, key=lambda each: each[1] / each[0])
    speed = plan_here(recipe, world.size, world.device, timed=True).speed
    return Check(
        predicted=predicted,
        measured=measured,
        step_seconds=seconds,
        predicted_seconds=num_tokens / speed.tokens_per_second,
    )


def _time(step: Callable[[], StepResult], world: World) -> tuple[int, float]:
    """Return the number of tokens and the duration of a step."""
    clock = compute_clock(world.device) if world.size == 1 else time.perf_counter
    synchronize(world.device)
    begin = clock()
    num_tokens = step().size.tokens
    synchronize(world.device)
    return num_tokens, clock() - begin


def allocated_at_peak(run: Callable[[], None]) -> int:
    """Return the peak of the CPU memory that ``run`` allocates, in bytes."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with (
        blocked(_let_others_release),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        run()
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    events = profiler.profiler.kineto_results.events()
    moves = sorted(
        (event.start_ns(), number, event.nbytes()) for number, event in enumerate(events) if event.name() == "[memory]"
    )
    live = peak = 0
    for _, _, num_bytes in moves:
        live += num_bytes
        peak = max(peak, live)
    return peak


@contextmanager
def _let_others_release() -> Iterator[None]:
    """Wait after each message, so that the sending thread releases it before this thread, which is observed, does."""
    yield
    time.sleep(0.005)


class _Early(Executor):
    """An executor that runs calls at once, so that tensors are read as early as possible."""

    def submit(self, call: Callable[[], Any], /) -> Future[Any]:  # type: ignore[override]
        done: Future[Any] = Future()
        done.set_result(call())
        return done


class _Late(Executor):
    """An executor that runs calls when their result is awaited, so that tensors are written as late as possible."""

    def submit(self, call: Callable[[], Any], /) -> Future[Any]:  # type: ignore[override]
        return _Due(call)


class _Due(Future[Any]):
    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call

    def result(self, timeout: float | None = None) -> Any:
        """Run the call."""
        return self._call()


def _let_transfers_take_longest(phased: Phased) -> None:
    """Transfer tensors in this thread, keeping each in memory as long as any disk could.

    The profiler observes only this thread, and the peak must not depend on the speed of the disk.
    """
    for lanes in (phased.home, phased.rows):
        lanes.reader.thread, lanes.writer.thread = _Early(), _Late()


def _bytes_of(state: TrainState) -> int:
    """Return the bytes of a state on the device: weights, moments, positions of blocks."""
    if isinstance(state.home, PhasedHome):
        return _storage_bytes(state.model.buffers())
    moments = (tensor for tensors in getattr(state.home, "moments", {}).values() for tensor in tensors.values())
    weights = (local(parameter.detach()) for parameter in state.model.parameters())
    return _storage_bytes([*weights, *moments, *state.model.buffers()])


def _storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in tensors
        if not tensor.is_meta
    }
    return sum(storages.values())


def _tokens_of(recipe: Recipe, state: TrainState, steps: Iterable[Sequence[Batch]]) -> set[Tokens]:
    """Return the tokens of the micro-batches that were made, which are new where no earlier one has their shape."""
    found, seen = set(), set()
    for micro_batches in steps:
        for number, batch in enumerate(micro_batches):
            shape = batch["tokens"].shape
            is_new = number > 0 and shape not in seen
            found.add(replace(tokens_of(recipe, state, batch), is_new=is_new))
            seen.add(shape)
    return found


def tokens_of(recipe: Recipe, state: TrainState, batch: Batch) -> Tokens:
    """Return the token counts of a micro-batch."""
    if "lengths" not in batch:
        return full_tokens(recipe)
    context: Any = state.model.make_context(batch)
    if "group_sizes" not in context:  # native and Triton's attention have none
        context |= group_sequences(batch["firsts"], batch["lengths"], batch["tokens"].shape, torch.device("cpu"))
    return Tokens(
        num=batch["tokens"].numel(),
        num_real=int(batch["lengths"].sum()),
        groups=tuple(Group(num, length) for num, length, _ in context["group_sizes"]),
        num_scored=len(batch.get("predictions", ())),
        is_gathered="gather_index" in context and "spans" not in context,
    )
