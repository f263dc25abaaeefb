"""What goes wrong, or otherwise, on one rank of two; run by test_uneven_ranks.py.

Each scenario writes what it saw to ``<folder>/<rank>.json``, weights to ``<rank>-<step>.safetensors``; runs go into
``<folder>/<scenario>``.
"""

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from tiny import random_batch, snapshot, tiny_state, tiny_step_config
from tiny_text import build_tiny, write_texts
from torch.distributed.distributed_c10d import _set_pg_timeout

from hornbook import checkpoint
from hornbook.config import load_recipe
from hornbook.engine.step import StepResult, train_step
from hornbook.errors import HornbookError, StorageError
from hornbook.evaluate import Row, TaskInput, register_task
from hornbook.objective import CausalLM
from hornbook.parallel.world import World
from hornbook.run.launch import open_run
from hornbook.run.loop import train_until_done
from hornbook.run.training_run import TrainingRun
from hornbook.samples.windows import NOT_SCORED

SHARE = 4
PATIENCE = timedelta(seconds=1)
TINY = (
    "--model.num-layers=2",
    "--model.hidden-size=32",
    "--model.num-heads=2",
    "--model.vocab-size=70",
    "--model.max-positions=16",
    "--data.synthetic",
    "--data.sequence-length=16",
    "--training.steps=8",
    "--training.epochs=none",
    "--training.global-batch-size=4",
    "--training.micro-batch-size=2",
    "--precision.compute=fp32",
    "--checkpoint.every-steps=3",
    "--tracking.sample-every-steps=none",
)
_record = TrainingRun.record


class Skipping(CausalLM):
    """Trains the head alone where a micro-batch scores nothing, so that all else has no gradient there."""

    def sums(self, head, x_BTD, batch):
        scores = bool((batch["targets"] != NOT_SCORED).any())
        return super().sums(head, x_BTD if scores else x_BTD.detach(), batch)


def train_with_gaps(world: World) -> list[dict[str, torch.Tensor]]:
    """Three steps: both halves of a batch score something, the first alone, none; weights and moments after each.

    The first is rank 0's, or one process's first micro-batch.
    """
    state, config = tiny_state(world=world), tiny_step_config(world, objective=Skipping())
    snapshots = []
    for step in range(3):
        batch = random_batch(2 * SHARE, 12, seed=step)
        batch["targets"][SHARE * (2 - step) :] = NOT_SCORED
        halves = [{name: tensor[half * SHARE :][:SHARE] for name, tensor in batch.items()} for half in range(2)]
        train_step(state, halves[world.rank :][: 2 // world.size], config)
        snapshots.append(snapshot(state))
    return snapshots


def wait_for_the_first(world: World) -> float:
    """The seconds that this rank waited for the first one at a barrier: longer than for anything else."""
    if world.size > 1:
        _set_pg_timeout(PATIENCE, dist.group.WORLD)
    start = time.perf_counter()
    if world.is_first:
        time.sleep(2 * PATIENCE.total_seconds())
    world.barrier()
    return time.perf_counter() - start


def _train(world: World, folder: Path, *overrides: str) -> dict[str, Any]:
    try:
        with open_run(load_recipe("demo", (*TINY, *overrides)).recipe, folder, world) as run:
            train_until_done(run)
            return {"step": run.state.progress.step, "error": None}
    except HornbookError as error:
        return {"step": run.state.progress.step, "error": f"{type(error).__name__}: {error}"}


def miss_the_data(world: World, folder: Path) -> str:
    """A task whose data the second rank does not see from the beginning."""

    def check(given: TaskInput) -> None:
        if world.rank == 1:
            raise StorageError("cannot read the data")

    @register_task("missing", check=check)
    def missing(given: TaskInput) -> list[Row]:
        raise AssertionError("it was to be refused")

    try:
        with open_run(load_recipe("demo", (*TINY, "--evaluation.tasks=missing")).recipe, folder, world):
            return "it began"
    except HornbookError as error:
        return f"{type(error).__name__}: {error}"


def differ_in_data(world: World, folder: Path) -> list[str]:
    """Each rank reads a corpus of its own: the same texts, then one less on the second rank."""
    seen = []
    for number, missing in enumerate((0, world.rank)):
        own = folder.parent / f"data-{number}-{world.rank}"
        build_tiny(own / "corpus", inputs=write_texts(own / "texts")[: 10 - missing])
        data = ("--data.synthetic=false", f"--data.train={own / 'corpus'}", "--model.vocab-size=300")
        try:
            with open_run(load_recipe("demo", (*TINY, *data)).recipe, folder / str(number), world):
                seen.append("it began")
        except HornbookError as error:
            seen.append(f"{error.exit_code} {type(error).__name__}: {error}")
    return seen


def lose_the_data(world: World, folder: Path) -> dict[str, Any]:
    """A task whose data the second rank does not see after step 3."""
    step = [0]

    def check(given: TaskInput) -> None:
        if world.rank == 1 and given.loaded.step == 3:
            raise StorageError("cannot read the data")

    @register_task("together", check=check)
    def together(given: TaskInput) -> list[Row]:
        step[0] = given.loaded.step
        return [Row(metric="ranks", value=given.ranks.sum_floats([1.0])[0], convention="how many there are")]

    return _train(world, folder, "--evaluation.tasks=together", "--evaluation.tasks-every-steps=3")


def spoil_weights(world: World, folder: Path) -> dict[str, Any]:
    """Weights of the second rank alone are not finite after step 6."""

    def record(run: TrainingRun, result: StepResult) -> None:
        _record(run, result)
        if world.rank == 1 and run.state.progress.step == 6:
            run.state.model.blocks[1].feed_forward.down.bias.detach()[2] = float("nan")

    return _with(TrainingRun, "record", record, lambda: _train(world, folder))


def resume_damaged(world: World, folder: Path) -> dict[str, Any]:
    """A resume from checkpoints of which the newest has a damaged file that the second rank alone verifies."""
    _train(world, folder)
    path = folder / "checkpoints" / "step-00000008"
    if world.is_first:
        (path / "optimizer-00000.safetensors").write_bytes(b"damaged")
    world.barrier()
    shares = [checkpoint.verify(path, share=(rank, 2)) for rank in range(2)]
    with open_run(load_recipe("demo", TINY).recipe, folder, world) as run:
        return {"step": run.state.progress.step, "error": None, "found_by": [len(problems) for problems in shares]}


def extend_a_finished_run(world: World, folder: Path) -> list[Any]:
    """A length that makes the learning rate jump, which the first rank alone can see."""
    options = (*TINY, "--schedule.name=cosine")
    _train(world, folder, *options)
    try:
        with open_run(load_recipe("demo", (*options, "--training.steps=16")).recipe, folder, world):
            return ["it began"]
    except HornbookError as error:
        return [type(error).__name__, str(error), world.was_reported(error)]


def fill_the_disk(world: World, folder: Path) -> dict[str, Any]:
    """No checkpoint can be written, which the first rank alone sees."""

    def save(folder: Path, contents: checkpoint.Contents, *others: object) -> Path:
        raise StorageError("the disk is full")

    return _with(checkpoint, "save", save, lambda: _train(world, folder))


def fill_the_second_disk(world: World, folder: Path) -> dict[str, Any]:
    """The second rank alone cannot write its part of a checkpoint."""

    def save_share(temporary: Path, step: int, rank: int, shards: object) -> None:
        assert temporary.is_dir()
        raise StorageError("the disk is full")

    return _with(checkpoint, "save_share", save_share, lambda: _train(world, folder))


def _with(owner: Any, name: str, value: object, action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        return action()
    finally:
        setattr(owner, name, before)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    world = World.join(torch.device("cpu"))
    for step, tensors in enumerate(train_with_gaps(world)):
        save_file(tensors, folder / f"{world.rank}-{step}.safetensors")
    seen = {
        "start": miss_the_data(world, folder / "start"),
        "other_data": differ_in_data(world, folder / "other_data"),
        "data": lose_the_data(world, folder / "data"),
        "weights": spoil_weights(world, folder / "weights"),
        "resumed": resume_damaged(world, folder / "resumed"),
        "extended": extend_a_finished_run(world, folder / "extended"),
        "disk": fill_the_disk(world, folder / "disk"),
        "second_disk": fill_the_second_disk(world, folder / "second_disk"),
        "waited": wait_for_the_first(world),
    }
    (folder / f"{world.rank}.json").write_text(json.dumps(seen), encoding="utf-8")
    world.leave()
