"""Checks before the first step: errors for recipes that cannot run, warnings about likely mistakes.

    train gpt2-small --data.train corpora/mine --training.steps 20
        -> schedule.warmup_steps is 2000, the run has 20 steps: the rate only reaches 6e-06 of 0.0006; ...
        -> a batch has 512 windows, the data 120: each step repeats them 4.3 times; ...
        -> the documents of corpora/old have no end-of-text tokens, unlike the others: ...
        -> model.vocab_size is 50,257, the data has 4,096 tokens; --model.vocab-size none uses the data's

The memory checks use lower bounds, without activations, logits and prefetched batches: a rejected run could not have
worked, but one that passes may still be too large.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from hornbook.config import CausalLMConfig, Recipe
from hornbook.config.description import description_of
from hornbook.config.optimizers import ScheduleConfig
from hornbook.config.sections import DTYPE_BYTES
from hornbook.engine.build_training import num_steps
from hornbook.engine.state import Progress
from hornbook.errors import UserError
from hornbook.optim.schedules import build_schedule, warmup_steps_of
from hornbook.parallel.world import World
from hornbook.samples.batches import Samples
from hornbook.samples.sources import Sources
from hornbook.storage.system import format_bytes
from hornbook.track.environment import memory_bytes
from hornbook.track.units import short
from hornbook.wording import counted

_BYTES_OF_ID = 8
_MAX_PADDING = 128
"""Largest multiple to which tables are padded for speed."""


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


def refuse_large_model(recipe: Recipe, world: World) -> Literal[True]:
    """Raise UserError if the model, gradients and optimizer state exceed the memory of this rank's device, else True.

    Args:
        recipe: the recipe; without a vocabulary, the token table does not count.
        world: the run's ranks: the device, and the ranks that shard the weights.

    Raises:
        UserError: they exceed it.
    """
    on_gpu = world.device.type == "cuda"
    device = torch.cuda.get_device_properties(world.device).total_memory if on_gpu else memory_bytes()
    needed = bytes_of_training(recipe) // (world.holders.size * world.pipeline.size)
    if device is not None and needed > device:
        fits = f"at most {short(0.9 * recipe.num_parameters() * device / needed)} parameters would fit"
        can_be_phased = recipe.memory.execution != "phased" and description_of(recipe.model) is not None
        phased = "; or keep the model in files or host memory by `memory.execution='phased'`" if can_be_phased else ""
        remedy = f"{fits}, with smaller sizes in [model]{phased}"
        raise UserError(
            f"a model of {recipe.num_parameters():,} parameters takes {format_bytes(needed)} with its gradients and "
            f"optimizer state, but {world.device.type} has {format_bytes(device)}: {remedy}"
        )
    return True


def bytes_of_training(recipe: Recipe) -> int:
    """Return the bytes of weights, gradients and optimizer state on the device.

    0 for a custom model that does not count its parameters. In phased execution, these are the largest tensor with its
    gradient and the gradient of a micro-batch.
    """
    if recipe.memory.execution == "phased":
        described = description_of(recipe.model)
        largest = max((math.prod(shape) for _, shape in described.shapes()), default=0) if described else 0
        return (recipe.precision.bytes_per_parameter + DTYPE_BYTES[recipe.precision.gradients]) * largest
    states = 0 if recipe.memory.offload_optimizer else recipe.bytes_of_states()
    return recipe.precision.bytes_per_parameter * recipe.num_parameters() + states


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


def refuse_blind_stopping(recipe: Recipe, samples: Samples) -> None:
    """Raise UserError for early stopping by a validation loss without validation data."""
    evaluation = recipe.evaluation
    by_validation = evaluation.early_stopping_patience is not None and recipe.checkpoint.best_by == "validation"
    if by_validation and samples.held_out is None:
        raise UserError(
            "early stopping needs the validation loss, but the run has no validation data: set "
            "data.validation, or a task in checkpoint.best_by"
        )


def changed_rate(before: Recipe, recipe: Recipe, samples: Samples, progress: Progress) -> str | None:
    """Return an error message if the learning rate would jump, as in a decay of another length; else None.

    A next rate between the last one and the one originally next is not a jump.

    Args:
        before: the recipe of the last start.
        recipe: the recipe of this start.
        samples: the run's samples.
        progress: the checkpoint's progress.
    """
    (was, old_length), (now, length) = (
        (build_schedule(each.schedule, steps), steps)
        for each in (before, recipe)
        for steps in [num_steps(each, samples)]
    )
    update, peak = progress.num_updates, recipe.optimizer.learning_rate
    if update == 0 or progress.step >= length:
        return None
    last, expected, following = was(update - 1), was(update), now(update)
    is_between = min(last, expected) <= following <= max(last, expected)
    if is_between or math.isclose(following, expected, rel_tol=1e-9):
        return None
    name = getattr(recipe.schedule, "name", "given")
    return (
        f"the learning rate was {peak * last:.3g} at step {progress.step} of {old_length} and would be "
        f"{peak * following:.3g} at step {progress.step + 1} of {length}, since the {name} schedule spans the run: "
        "keep the length, or accept the jump with `allow_learning_rate_change` (to extend a run later, give it a "
        "constant schedule, or schedule.decay_end from the start)"
    )


def slips(recipe: Recipe, samples: Samples, sources: Sources, num_steps: int) -> Iterator[str]:
    """Yield warnings about a recipe whose data and length are known."""
    batch = large_batch(recipe, samples.num_samples, samples.noun)
    return filter(None, (long_warmup(recipe, num_steps), batch, differing_ends(recipe, sources)))


def long_warmup(recipe: Recipe, num_steps: int) -> str | None:
    """Return a warning if the run ends during its warm-up, with the learning rate reached; else None."""
    schedule, peak = recipe.schedule, recipe.optimizer.learning_rate
    if not isinstance(schedule, ScheduleConfig) or warmup_steps_of(schedule, num_steps) <= num_steps:
        return None
    reached = peak * build_schedule(schedule, num_steps)(num_steps - 1)
    return (
        f"schedule.warmup_steps is {schedule.warmup_steps}, but the run has "
        f"{counted(num_steps, 'step')}: the learning rate only reaches {reached:.2g} of {peak:g}; "
        "lower it, or use `schedule.warmup_fraction`"
    )


def large_batch(recipe: Recipe, num_samples: int, noun: str) -> str | None:
    """Return a warning if a batch repeats samples; else None."""
    size = recipe.training.global_batch_size
    if size <= num_samples:
        return None
    return (
        f"a batch has {counted(size, noun)}, but the data has only {num_samples:,}: each step "
        f"repeats them {size / num_samples:.1f} times; lower training.global_batch_size"
    )


def large_vocabulary(recipe: Recipe, sources: Sources) -> str | None:
    """Return a warning if the model's vocabulary is larger than the data's, beyond padding; else None."""
    own, theirs = recipe.model.vocab_size, sources.vocab_size
    if own is None or theirs is None or own <= -(-theirs // _MAX_PADDING) * _MAX_PADDING:
        return None
    return (
        f"model.vocab_size is {own:,}, but the vocabulary of the data has {theirs:,} tokens; to use "
        "that, pass `model.vocab_size='none'`"
    )


def differing_ends(recipe: Recipe, sources: Sources) -> str | None:
    """Return a warning if only some of a decoder's stores have end-of-text tokens; else None."""
    if not isinstance(recipe.objective, CausalLMConfig):
        return None
    ends = {path: source.end_of_text for path, source in zip(recipe.data.train, sources.train, strict=False)}
    without = [path for path, end_of_text in ends.items() if end_of_text == "absent"]
    if len(without) in (0, len(ends)):
        return None
    return (
        f"the documents of {', '.join(without)} have no end-of-text tokens, unlike the others: "
        "rebuild the store, or convert it with `end_of_text='inserted'`"
    )
