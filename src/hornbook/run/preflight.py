"""Checks before the first step: errors for recipes that cannot run, warnings about likely mistakes.

`hornbook.run.launch` and `hornbook.run.examine` make the same checks in the same order; the former stops at the first
error. Some of them also build what the next ones need, so they stand there.

    train gpt2-small --data.train corpora/mine --training.steps 20
        -> schedule.warmup_steps is 2000, the run has 20 steps: the rate only reaches 6e-06 of 0.0006; ...
        -> a batch has 512 windows, the data 120: each step repeats them 4.3 times; ...
        -> the documents of corpora/old have no end-of-text tokens, unlike the others: ...
        -> model.vocab_size is 50,257, the data has 4,096 tokens; --model.vocab-size none uses the data's

The memory checks use lower bounds, without activations, logits and prefetched batches: a rejected run could not have
worked, but one that passes may still be too large.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from hornbook import checkpoint
from hornbook.config import CausalLMConfig, Recipe
from hornbook.config.build import refuse_misfit
from hornbook.config.optimizers import ScheduleConfig
from hornbook.config.shapes import padded_rows
from hornbook.engine.build_training import needs_files, num_steps
from hornbook.engine.state import Progress, TrainState
from hornbook.errors import StorageError, UserError
from hornbook.optim.schedules import build_schedule, warmup_steps_of
from hornbook.parallel.device import DTYPES, compute_dtype
from hornbook.parallel.world import World
from hornbook.run.early import refuse_oversized
from hornbook.samples.batches import Samples
from hornbook.samples.sources import Sources
from hornbook.storage.scratch import require_scratch
from hornbook.storage.system import format_bytes, free_bytes
from hornbook.track.environment import memory_bytes
from hornbook.track.trackers.tracker import open_function
from hornbook.wording import counted

_BYTES_OF_ID = 8
_MAX_PADDING = 128
"""Largest multiple to which tables are padded for speed."""
_BYTES_OF_ROW = 600
"""Of a line of the log."""
_BYTES_OF_TOKEN = 70
"""Of a tokenizer's file, which each checkpoint has, per token."""
_BESIDE = 2 << 20
"""Bytes for report, records and the file system's overhead."""


@dataclass(frozen=True)
class Finding:
    """The result of a check: an error prevents the start of a training, a warning does not.

    Attributes:
        level: "error" or "warning".
        about: name of the checked part, such as ``"data"``.
        message: one line that says what is wrong and how to fix it.
    """

    level: Literal["error", "warning"]
    about: str
    message: str


Check = tuple[str, Callable[[], object]]
"""The part of a start that a check is about, and the check, which raises a HornbookError."""


def checks_of_recipe(recipe: Recipe, num_ranks: int) -> list[Check]:
    """Return the checks of a start, in order, that need neither connected ranks nor data."""
    functions: list[Check] = [("trackers", partial(open_function, name)) for name in recipe.tracking.trackers]
    return [("ranks", partial(refuse_misfit, recipe, num_ranks)), *functions]


def checks_of_data(recipe: Recipe, samples: Samples, world: World, output: Path) -> list[Check]:
    """Return the checks of a start, in order, that need the data and the axes, before any file is written."""
    checks: list[Check] = [
        ("memory", partial(refuse_large_model, recipe, world)),
        ("memory", partial(refuse_large_batch, recipe, samples, world)),
    ]
    if needs_files(recipe, world.device):
        needed = bytes_of_scratch(recipe, world)
        checks.append(("scratch", partial(require_scratch, scratch_base(recipe, output), needed)))
    return checks


def checks_of_state(
    before: Recipe | None, recipe: Recipe, samples: Samples, state: TrainState, output: Path | None
) -> list[Check]:
    """Return the checks of a start, in order, that need the resumed state.

    Args:
        before: the recipe of the last start; None if there is none, or any learning rate is accepted.
        recipe: complete.
        samples: the run's samples.
        state: restored from the newest checkpoint, if any.
        output: the folder for checkpoints; None for a rank that writes none.
    """
    checks: list[Check] = [("schedule", partial(refuse_shorter_run, num_steps(recipe, samples), state.progress))]
    if before is not None:
        checks.append(("schedule", partial(refuse_changed_rate, before, recipe, samples, state.progress)))
    if state.progress.step < num_steps(recipe, samples):
        if output is not None:
            checks.append(("disk", partial(refuse_full_disk, recipe, samples, state, output)))
        if recipe.evaluation.early_stopping_patience is not None:
            checks.append(("evaluation", partial(refuse_blind_stopping, recipe, samples)))
    return checks


def refuse_large_model(recipe: Recipe, world: World) -> None:
    """Raise UserError if a rank's part of the model and of its training exceeds the memory of its device.

    Args:
        recipe: the recipe; without a vocabulary, the token table does not count.
        world: the run's ranks: the device, and the ranks that shard the weights.

    Raises:
        UserError: see `hornbook.run.early.refuse_oversized`.
    """
    on_gpu = world.device.type == "cuda"
    memory = torch.cuda.get_device_properties(world.device).total_memory if on_gpu else memory_bytes()
    refuse_oversized(recipe, world.holders.size * world.pipeline.size, world.device.type, memory)


def refuse_large_batch(recipe: Recipe, samples: Samples, world: World) -> None:
    """Raise UserError if a rank's token ids of one step exceed the memory of its machine.

    Args:
        recipe: complete, with a vocabulary.
        samples: the run's samples, for the tokens per batch.
        world: the run's ranks.

    Raises:
        UserError: they exceed it.
    """
    host = memory_bytes()
    batch = recipe.training.global_batch_size
    ids = int(_BYTES_OF_ID * samples.tokens_per_sample * batch / world.data.size)
    if host is not None and ids > host:
        raise UserError(
            f"training.global_batch_size = {batch:,}: the token ids of one step take {format_bytes(ids)} on each "
            f"rank, but this machine has {format_bytes(host)}: lower it"
        )


def refuse_full_disk(recipe: Recipe, samples: Samples, state: TrainState, output: Path) -> None:
    """Raise StorageError if the disk is too small for the checkpoints that exist at a time, and the logs.

    One more checkpoint than those to keep exists while it is written. A run without validation data keeps at least two.

    Args:
        recipe: complete.
        samples: the run's samples.
        state: restored from the newest checkpoint, if any.
        output: the run's folder, whose checkpoints are counted as there.
    """
    keep, tracking, done = recipe.checkpoint, recipe.tracking, state.progress.step
    length, is_measured = num_steps(recipe, samples), samples.held_out is not None
    saves = -(-length // keep.every_steps) - done // keep.every_steps
    kept = keep.keep_last if is_measured else max(keep.keep_last, 2)
    kept += keep.keep_best and (is_measured or keep.best_by != "validation")
    there = len(checkpoint.steps_in(output / "checkpoints")) if done else 0
    count = min(saves, max(1, kept + 1 - there))
    shards = (shard for tensors in state.home.tensors().values() for shard in tensors.values())
    size = sum(math.prod(shard.shape) * shard.values.element_size() for shard in shards)  # over all ranks
    size += _BYTES_OF_TOKEN * (recipe.model.vocab_size or 0)
    rows = (length - done) // tracking.log_every_steps + (length - done) // recipe.evaluation.every_steps
    needed, free = count * size + rows * _BYTES_OF_ROW + _BESIDE, free_bytes(output)
    if needed > free:
        raise StorageError(
            f"{output} will need {format_bytes(needed)}, for up to {counted(count, 'further checkpoint')} of "
            f"{format_bytes(size)} at a time and {format_bytes(needed - count * size)} of logs, but "
            f"{format_bytes(free)} is free: free {format_bytes(needed - free)} more, lower checkpoint.keep_last, or "
            "choose another `output`"
        )


def refuse_blind_stopping(recipe: Recipe, samples: Samples) -> None:
    """Raise UserError for early stopping by a validation loss without validation data."""
    if recipe.checkpoint.best_by == "validation" and samples.held_out is None:
        raise UserError(
            "early stopping needs the validation loss, but the run has no validation data: set "
            "data.validation, or a task in checkpoint.best_by"
        )


def refuse_shorter_run(num_steps: int, progress: Progress) -> None:
    """Raise UserError if a run would have fewer steps than are done."""
    if num_steps < progress.step:
        raise UserError(
            f"the run would have {counted(num_steps, 'step')}, but {progress.step} are done: keep its length, or "
            "choose another `output` for a new run"
        )


def refuse_changed_rate(before: Recipe, recipe: Recipe, samples: Samples, progress: Progress) -> None:
    """Raise UserError if the learning rate would jump, as in a decay of another length.

    A next rate between the last one and the one originally next is not a jump.

    Args:
        before: the recipe of the last start.
        recipe: the recipe of this start.
        samples: the run's samples.
        progress: the checkpoint's progress.
    """
    length, update = num_steps(recipe, samples), progress.num_updates
    if update == 0 or progress.step >= length:
        return
    old_length = num_steps(before, samples)
    was, now = build_schedule(before.schedule, old_length), build_schedule(recipe.schedule, length)
    last, expected, following = was(update - 1), was(update), now(update)
    is_between = min(last, expected) <= following <= max(last, expected)
    if is_between or math.isclose(following, expected, rel_tol=1e-9):
        return
    name, peak = getattr(recipe.schedule, "name", "given"), recipe.optimizer.learning_rate
    raise UserError(
        f"the learning rate was {peak * last:.3g} at step {progress.step} of {old_length} and would be "
        f"{peak * following:.3g} at step {progress.step + 1} of {length}, since the {name} schedule spans the run: "
        "keep the length, or accept the jump with `allow_learning_rate_change` (to extend a run later, give it a "
        "constant schedule, or schedule.decay_end from the start)"
    )


def find_mistakes(recipe: Recipe, samples: Samples, sources: Sources, num_steps: int) -> Iterator[str]:
    """Yield warnings about a recipe whose data and length are known.

    The run ends during its warm-up; a batch repeats samples; only some of a decoder's stores have end-of-text tokens.
    """
    schedule, size = recipe.schedule, recipe.training.global_batch_size
    if isinstance(schedule, ScheduleConfig) and warmup_steps_of(schedule, num_steps) > num_steps:
        peak = recipe.optimizer.learning_rate
        reached = peak * build_schedule(schedule, num_steps)(num_steps - 1)
        yield (
            f"schedule.warmup_steps is {schedule.warmup_steps}, but the run has "
            f"{counted(num_steps, 'step')}: the learning rate only reaches {reached:.2g} of {peak:g}; "
            "lower it, or use `schedule.warmup_fraction`"
        )
    if size > samples.num_samples:
        yield (
            f"a batch has {counted(size, samples.noun)}, but the data has only {samples.num_samples:,}: each step "
            f"repeats them {size / samples.num_samples:.1f} times; lower training.global_batch_size"
        )
    if isinstance(recipe.objective, CausalLMConfig):
        ends = {path: source.end_of_text for path, source in zip(recipe.data.train, sources.train, strict=False)}
        without = [path for path, end_of_text in ends.items() if end_of_text == "absent"]
        if len(without) not in (0, len(ends)):
            yield (
                f"the documents of {', '.join(without)} have no end-of-text tokens, unlike the others: "
                "rebuild the store, or convert it with `end_of_text='inserted'`"
            )


def find_unused_vocabulary(recipe: Recipe, sources: Sources) -> str | None:
    """Return a warning if the model's vocabulary is larger than the data's, beyond padding; else None."""
    own, theirs = recipe.model.vocab_size, sources.vocab_size
    if own is None or theirs is None or own <= -(-theirs // _MAX_PADDING) * _MAX_PADDING:
        return None
    return (
        f"model.vocab_size is {own:,}, but the vocabulary of the data has {theirs:,} tokens; to use "
        "that, pass `model.vocab_size='none'`"
    )


def scratch_base(recipe: Recipe, output: Path) -> Path:
    """Return the folder of all ranks' scratch files; ``output`` is the run's folder."""
    return Path(recipe.memory.scratch or output)


def bytes_of_scratch(recipe: Recipe, world: World) -> int:
    """Return the bytes that phased execution keeps off the device on each rank, for batches without padding.

    These are the state, a tied table's second gradient, and the hidden states between layers of all micro-batches.

    Args:
        recipe: complete, with a vocabulary; sizes that a custom model does not state do not count.
        world: the run's ranks.
    """
    model, precision = recipe.model, recipe.precision
    hidden_size, num_layers = (getattr(model, name, 0) for name in ("hidden_size", "num_layers"))
    state = precision.bytes_per_parameter * recipe.num_parameters() + recipe.bytes_of_states()
    table = padded_rows(model.vocab_size or 0) * hidden_size * DTYPES[precision.gradients].itemsize
    tokens = recipe.training.global_batch_size // world.data.size * recipe.sequence_length
    row = tokens * hidden_size * compute_dtype(precision.compute, world.device).itemsize
    return int(state // world.holders.size + table + (num_layers + 2) * row)
