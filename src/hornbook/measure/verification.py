"""Verify that a recipe resumes and scales to more ranks with the same numbers.

    resume      whole:        step 1 ... 6                        weights, moments, progress and losses must be
                interrupted:  step 1 2 3 | stop, resume | 4 5 6   equal bit for bit
    topology    one process   gradients of step 1, loss of each step
                each layout   the same; differences are rounding

Both run a few steps of the recipe. All ranks call these functions together.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch.distributed.tensor import Replicate

from hornbook import checkpoint
from hornbook.config import ParallelConfig, Recipe
from hornbook.config.build import refuse_misfit
from hornbook.config.parallel import PipelineSchedule, Sizes
from hornbook.engine.build_training import build_loader, build_samples, build_training
from hornbook.engine.state import TrainState
from hornbook.engine.step import StepConfig, train_step
from hornbook.errors import StoppedBySignal, UserError
from hornbook.model import LanguageModel
from hornbook.objective import Objective
from hornbook.parallel.ranks import is_cut, local
from hornbook.parallel.world import World
from hornbook.run.launch import open_data, open_run
from hornbook.run.loop import train_until_done
from hornbook.run.run_folder import RunFolder
from hornbook.samples.batches import Batch
from hornbook.samples.sources import Sources
from hornbook.track.metrics import read

_CLOCKS = ("seconds", "tokens_per_second", "tflops", "mfu")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A row of the table of `verify_resume`."""

    what: str
    compared: int
    different: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A row of the table of `verify_topology`: a layout compared with one process."""

    layout: str
    gradients: float
    """Norm of the difference of the first step's gradients, relative to their norm."""
    losses: float
    """Largest relative difference of the losses."""


def shrunk(recipe: Recipe, num_steps: int) -> Recipe:
    """Return a recipe for the first steps of a run, without samples, tasks and early stopping."""
    training = replace(recipe.training, steps=num_steps, epochs=None, tokens=None)
    saving = replace(recipe.checkpoint, every_steps=num_steps, keep_last=2, best_by="validation")
    evaluation = replace(
        recipe.evaluation,
        every_steps=num_steps,
        max_windows=min(recipe.evaluation.max_windows or 8, 8),
        tasks=(),
        task_data=(),
        tasks_every_steps=None,
        early_stopping_patience=None,
        early_stopping_min_delta=0.0,
    )
    tracking = replace(recipe.tracking, log_every_steps=1, sample_every_steps=None)
    return replace(recipe, training=training, checkpoint=saving, evaluation=evaluation, tracking=tracking)


def verify_resume(recipe: Recipe, world: World, folder: Path, *, num_steps: int) -> list[Compared]:
    """Train ``num_steps`` steps twice, the second time interrupted halfway and resumed, and compare the runs.

    Args:
        recipe: shortened by `shrunk`.
        world: of the runs.
        folder: a new folder for both runs, accessible to all ranks.
        num_steps: 2 or more.

    Returns:
        The comparisons on the first rank; [] on the others.

    Raises:
        StoppedBySignal: on a signal, also in a run's last step; it may leave both runs unfinished.
    """
    recipe = shrunk(recipe, num_steps)
    for name, stop_after in (("whole", None), ("interrupted", num_steps // 2), ("interrupted", None)):
        with open_run(recipe, folder / name, world) as run:
            late = train_until_done(run, stop_after)
            if world.any(late is not None):
                raise world.reported_by(0, StoppedBySignal(f"stopped by {late or 'a signal to another rank'}"))
    return (
        list(_compared(RunFolder(path=folder / "whole"), RunFolder(path=folder / "interrupted"), num_steps))
        if world.is_first
        else []
    )


def _compared(whole: RunFolder, other: RunFolder, step: int) -> Iterator[Compared]:
    contents = [checkpoint.load(checkpoint.folder_of(run.checkpoints, step)) for run in (whole, other)]
    for group, what in {"model": "weights", "optimizer": "optimizer state"}.items():
        ours, theirs = (held.tensors[group] for held in contents)
        names = {*ours, *theirs}
        equal = [name in ours and name in theirs and torch.equal(ours[name], theirs[name]) for name in names]
        yield Compared(what=what, compared=len(names), different=equal.count(False))
    states = [held.documents["state"] for held in contents]
    yield _differing("progress", *[[(k, v) for k, v in state.items() if k not in _CLOCKS] for state in states])
    rows = [[{k: v for k, v in row.items() if k not in _CLOCKS} for row in read(at.metrics)] for at in (whole, other)]
    yield _differing("rows of metrics", *rows)


def _differing(what: str, ours: list[Any], theirs: list[Any]) -> Compared:
    num = max(len(ours), len(theirs))
    same = sum(repr(a) == repr(b) for a, b in zip(ours, theirs, strict=False))
    return Compared(what=what, compared=num, different=num - same)


def layouts_of(recipe: Recipe, num_ranks: int) -> tuple[dict[str, ParallelConfig], dict[str, str]]:
    """Return the layouts that the recipe supports, its own first, and the reasons against the others, by name.

    They are each axis alone, a pipeline with every schedule, and products with at most two ranks on all axes but one.
    """
    candidates = [recipe.parallel]
    for sizes in _products(num_ranks):
        parallel = _layout_of(sizes)
        is_alone = sizes.pipeline == num_ranks
        schedules = get_args(PipelineSchedule) if is_alone else [parallel.pipeline_schedule]
        candidates += [replace(parallel, pipeline_schedule=schedule) for schedule in schedules]
    fitting: dict[str, ParallelConfig] = {}
    misfits: dict[str, str] = {}
    for parallel in candidates:
        name = _name(parallel, num_ranks)
        if problem := _misfit(recipe, parallel, num_ranks):
            misfits[name] = problem
        else:
            fitting.setdefault(name, parallel)
    return fitting, {name: problem for name, problem in misfits.items() if name not in fitting}


def _products(num_ranks: int) -> list[Sizes]:
    """Return sizes whose product is ``num_ranks``, all but one of them 1 or 2, single axes first."""
    found = {
        Sizes._make((*others[:axis], num_ranks // math.prod(others), *others[axis:]))
        for others in product((1, 2), repeat=len(Sizes._fields) - 1)
        for axis in range(len(Sizes._fields))
        if num_ranks % math.prod(others) == 0
    }
    return sorted(found, key=lambda sizes: (sum(size > 1 for size in sizes), sizes.pipeline, sizes.tensor, sizes.shard))


def _layout_of(sizes: Sizes) -> ParallelConfig:
    is_hybrid = sizes.replicate > 1 and sizes.shard > 1
    return ParallelConfig(
        data_parallel="hybrid" if is_hybrid else "shard" if sizes.shard > 1 else "replicate",
        shard_size=sizes.shard if is_hybrid else None,
        tensor_parallel=sizes.tensor,
        pipeline_parallel=sizes.pipeline,
    )


def _misfit(recipe: Recipe, parallel: ParallelConfig, num_ranks: int) -> str:
    """Return why the recipe does not support a layout; "" if it does."""
    try:
        refuse_misfit(replace(recipe, parallel=parallel), num_ranks)
    except UserError as error:
        return str(error)
    return "; ".join(problem.message for problem in parallel.conflicts(recipe.model))


def _name(parallel: ParallelConfig, num_ranks: int) -> str:
    sizes = parallel.sizes(num_ranks)._asdict()
    layout = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "one rank"
    layout += ", sequence parallel" if parallel.sequence_parallel else ""
    return f"{layout}, {parallel.pipeline_schedule}" if sizes["pipeline"] > 1 else layout


def verify_topology(
    recipe: Recipe, world: World, layouts: Mapping[str, ParallelConfig], *, num_steps: int
) -> tuple[list[Difference], dict[str, str]]:
    """Train ``num_steps`` steps in one process, then with each layout, and compare.

    Args:
        recipe: shortened by `shrunk`.
        world: of all ranks.
        layouts: of these ranks, by name; see `layouts_of`.
        num_steps: 1 or more.

    Returns:
        A row for each layout on the first rank, [] on the others; and the errors of rejected layouts, by name.

    Raises:
        UserError: the data cannot be read, or one process cannot train the recipe.
    """
    recipe, sources = open_data(shrunk(recipe, num_steps), RunFolder(path=Path()), None)
    alone = replace(recipe, parallel=ParallelConfig())
    reference = _train(alone, sources, World(device=world.device), num_steps) if world.is_first else None
    world.barrier()
    differences, refused = [], {}
    for name, parallel in layouts.items():
        try:
            found = _train(replace(recipe, parallel=parallel), sources, world.laid_out(parallel), num_steps)
        except UserError as error:  # caused by the layout, so the same on all ranks: one process has trained already
            refused[name] = str(error)
        else:
            if reference is not None:
                differences.append(_difference(name, reference, found))
    return differences, refused


def _difference(
    name: str, reference: tuple[dict[str, Tensor], list[float]], other: tuple[dict[str, Tensor], list[float]]
) -> Difference:
    (gradients, losses), (theirs, their_losses) = reference, other
    total = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients.values()))
    off = math.sqrt(sum(float((theirs[key].double() - gradients[key]).square().sum()) for key in gradients))
    largest = max(abs(b - a) / abs(a) for a, b in zip(losses, their_losses, strict=True))
    return Difference(layout=name, gradients=off / total, losses=largest)


def _train(recipe: Recipe, sources: Sources, world: World, num_steps: int) -> tuple[dict[str, Tensor], list[float]]:
    """Return the unsplit gradients of the first step, without padding, and the losses."""
    samples = build_samples(recipe, sources, on_cpu=world.device.type == "cpu")
    state, config = build_training(recipe, num_steps, world)
    state.model.train()
    observed, gradients = keeping_gradients(config)
    with build_loader(recipe, samples, world, vocab_size=state.model.num_ids) as loader:
        results = [train_step(state, next(loader), observed) for _ in range(num_steps)]
    return gradients, [float("nan") if result.loss is None else result.loss for result in results]


def keeping_gradients(config: StepConfig) -> tuple[StepConfig, dict[str, Tensor]]:
    """Return ``config`` with an executor that stores the gradients of the first step, and the dictionary for them.

    The gradients are unsplit, see ``whole_tensors``.
    """
    gradients: dict[str, Tensor] = {}

    def executor(
        state: TrainState,
        micro_batches: Sequence[Batch],
        objective: Objective,
        counts: Mapping[str, int],
        begin: Callable[[int], None],
    ) -> dict[str, Tensor]:
        sums = config.executor(state, micro_batches, objective, counts, begin)
        if state.progress.step == 0:
            held = {name: value.grad for name, value in state.model.own_parameters() if value.grad is not None}
            gradients.update(whole_tensors(state.model, held, config.world))
        return sums

    return replace(config, executor=executor), gradients


def whole_tensors(model: LanguageModel, tensors: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """Gather parameters, or their gradients, from all ranks; all ranks must call this together.

    Args:
        model: of the parameters.
        tensors: this rank's tensors, or parts of them, by the name of the parameter.
        world: of all ranks that hold parts.

    Returns:
        Copies on the CPU, without padding, by name.
    """
    own = {name: model.logical(name, _whole(tensor.detach())).cpu().clone() for name, tensor in tensors.items()}
    stages = [world.pipeline.share(own, stage) for stage in range(world.pipeline.size)]
    return {name: tensor for stage in stages for name, tensor in stage.items()}


def _whole(tensor: Tensor) -> Tensor:
    """Return a tensor gathered from all ranks that hold a part of it.

    It gathers one axis after the other, sharding first, since it splits what tensor parallelism has split; PyTorch
    warns about other orders.
    """
    if not is_cut(tensor):
        return tensor
    cut: Any = tensor
    for axis in range(len(cut.placements)):
        cut = cut.redistribute(placements=[Replicate()] * (axis + 1) + list(cut.placements[axis + 1 :]))
    return local(cut)
