"""Checks before the first step: what cannot run is refused, what may be a slip in the recipe is a line.

    train gpt2-small --data.train corpora/mine --training.steps 20
        -> schedule.warmup_steps is 2000, the run has 20 steps: the rate only reaches 6e-06 of 0.0006; ...
        -> a batch has 512 windows, the data 120: each step repeats them 4.3 times; ...
        -> the documents of corpora/old have no end-of-text tokens, unlike the others: ...
        -> model.vocab_size is 50,257, the data has 4,096 tokens; --model.vocab-size none uses the data's

The bounds of memory are lower ones, since activations, logits and batches that are made ahead come on top of them: what
is refused could not have run, and what passes may still be too large.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from hornbook.config import CausalLMConfig, Recipe
from hornbook.config.optimizers import ScheduleConfig
from hornbook.config.sections import DTYPE_BYTES
from hornbook.engine.build_training import num_steps
from hornbook.engine.state import Progress
from hornbook.errors import UserError
from hornbook.optim.schedules import build_schedule, warmup_steps_of
from hornbook.optim.updates import build_update
from hornbook.parallel.world import World
from hornbook.samples.batches import Samples
from hornbook.samples.sources import Sources
from hornbook.storage.system import format_bytes
from hornbook.track.environment import memory_bytes
from hornbook.wording import counted

_BYTES_OF_ID = 8
_MAX_PADDING = 128
"""The rows of a table are padded to a multiple of at most so many, for speed."""


@dataclass(frozen=True)
class Finding:
    """What a check found: an error keeps a training from its start, a warning does not.

    Attributes:
        level: which of the two.
        about: a word for what was checked, as ``"data"``.
        message: one line that says what is wrong and how to mend it.
    """

    level: Literal["error", "warning"]
    about: str
    message: str


def refuse_large_model(recipe: Recipe, world: World) -> None:
    """Refuse a model that is larger than the memory of this rank's device, with gradients and optimizer state.

    Args:
        recipe: without a vocabulary, its token table does not count.
        world: of the run; gives the device, and the ranks that share one copy of the weights.

    Raises:
        UserError: it is larger.
    """
    on_gpu = world.device.type == "cuda"
    device = torch.cuda.get_device_properties(world.device).total_memory if on_gpu else memory_bytes()
    needed = bytes_of_training(recipe) // (world.holders.size * world.pipeline.size)
    if device is not None and needed > device:
        raise UserError(
            f"a model of {recipe.num_parameters():,} parameters takes {format_bytes(needed)} with its gradients and "
            f"optimizer state, and {world.device.type} has {format_bytes(device)}: check the sizes in [model]"
        )


def bytes_of_training(recipe: Recipe) -> int:
    """Return the bytes of weights, gradients and optimizer state on the device.

    0 for a model of one's own that does not count its parameters. In phased execution, that is the largest tensor with
    its gradient and the gradient of a micro-batch.
    """
    if recipe.memory.execution == "phased":
        shapes = recipe.model.shapes() if hasattr(recipe.model, "shapes") else ()
        largest = max((math.prod(shape) for _, shape in shapes), default=0)
        return (recipe.precision.bytes_per_parameter(()) + DTYPE_BYTES[recipe.precision.gradients]) * largest
    states = () if recipe.memory.offload_optimizer else build_update(recipe.optimizer).state_names
    return recipe.precision.bytes_per_parameter(states) * recipe.num_parameters()


def refuse_large_batch(recipe: Recipe, samples: Samples, world: World) -> None:
    """Refuse a batch whose share of token ids is larger than the memory of this rank's machine.

    Args:
        recipe: complete, with a vocabulary.
        samples: of the run; they tell the tokens of a batch.
        world: of the run; gives the number of ranks.

    Raises:
        UserError: it is larger.
    """
    host = memory_bytes()
    batch = recipe.training.global_batch_size
    ids = int(_BYTES_OF_ID * samples.tokens_per_sample * batch / world.data.size)
    if host is not None and ids > host:
        raise UserError(
            f"training.global_batch_size = {batch:,}: the token ids of one step take {format_bytes(ids)} on each "
            f"rank, and this machine has {format_bytes(host)}: lower it"
        )


def refuse_blind_stopping(recipe: Recipe, samples: Samples) -> None:
    """Refuse early stopping by a validation loss that the run has no data for."""
    evaluation = recipe.evaluation
    by_validation = evaluation.early_stopping_patience is not None and recipe.checkpoint.best_by == "validation"
    if by_validation and samples.held_out is None:
        raise UserError(
            "early stopping needs the validation loss, and the run has no validation data: set "
            "data.validation, or a task in checkpoint.best_by"
        )


def changed_rate(before: Recipe, recipe: Recipe, samples: Samples, progress: Progress) -> str | None:
    """Say that the learning rate would jump, as a decay does whose length was changed; None where it does not.

    The next rate may lie between the last one and the one that the run would have had next: that is no jump.

    Args:
        before: the recipe of the last start.
        recipe: of this one.
        samples: of the run.
        progress: of the checkpoint.
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
        "keep the length, or accept the jump with --allow-learning-rate-change (a run that is to be extended needs a "
        "constant schedule, or schedule.decay_end from the start)"
    )


def slips(recipe: Recipe, samples: Samples, sources: Sources, num_steps: int) -> Iterator[str]:
    """Yield warnings about a recipe, now that its data and its length are known."""
    batch = large_batch(recipe, samples.num_samples, samples.noun)
    return filter(None, (long_warmup(recipe, num_steps), batch, differing_ends(recipe, sources)))


def long_warmup(recipe: Recipe, num_steps: int) -> str | None:
    """Say that the run ends before its warm-up does, and how far the learning rate comes; None where it does not."""
    schedule, peak = recipe.schedule, recipe.optimizer.learning_rate
    if not isinstance(schedule, ScheduleConfig) or warmup_steps_of(schedule, num_steps) <= num_steps:
        return None
    reached = peak * build_schedule(schedule, num_steps)(num_steps - 1)
    return (
        f"schedule.warmup_steps is {schedule.warmup_steps}, but the run has "
        f"{counted(num_steps, 'step')}: the learning rate only reaches {reached:.2g} of {peak:g}; "
        "lower it, or use --schedule.warmup-fraction"
    )


def large_batch(recipe: Recipe, num_samples: int, noun: str) -> str | None:
    """Say that a batch goes through all samples more than once; None where it does not."""
    size = recipe.training.global_batch_size
    if size <= num_samples:
        return None
    return (
        f"a batch has {counted(size, noun)}, but the data has only {num_samples:,}: each step "
        f"repeats them {size / num_samples:.1f} times; lower training.global_batch_size"
    )


def large_vocabulary(recipe: Recipe, sources: Sources) -> str | None:
    """Say that the model has more tokens than its data, by more than padding explains; None where it has not."""
    own, theirs = recipe.model.vocab_size, sources.vocab_size
    if own is None or theirs is None or own <= -(-theirs // _MAX_PADDING) * _MAX_PADDING:
        return None
    return (
        f"model.vocab_size is {own:,}, but the vocabulary of the data has {theirs:,} tokens; to use "
        "that, pass --model.vocab-size none"
    )


def differing_ends(recipe: Recipe, sources: Sources) -> str | None:
    """Say that a decoder is to learn where texts end from some of its stores only; None where that is not so."""
    if not isinstance(recipe.objective, CausalLMConfig):
        return None
    ends = {path: source.end_of_text for path, source in zip(recipe.data.train, sources.train, strict=False)}
    without = [path for path, end_of_text in ends.items() if end_of_text == "absent"]
    if len(without) in (0, len(ends)):
        return None
    return (
        f"the documents of {', '.join(without)} have no end-of-text tokens, unlike the others: "
        "rebuild the store, or convert it with --end-of-text inserted"
    )
