"""One training step: count, forward and backward, sum over ranks, look, update.

::

    micro-batches -> counts of the global batch -> executor -> gradients -> sum over ranks -> norm
                                                                  finite?  yes: clip, update
                                                                           no:  skip, count, go on
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hornbook.data.loader import Batch
from hornbook.engine.executor import Executor, resident
from hornbook.engine.state import TrainState
from hornbook.objective import Objective
from hornbook.optim.updates import Update, clip_by_global_norm
from hornbook.parallel.world import World


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The fixed parts of a step."""

    objective: Objective
    update: Update
    schedule: Callable[[int], float]
    """From the number of the update, from 0, to the learning rate."""
    clip_norm: float | None
    world: World
    executor: Executor = resident


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step did, the same on every rank."""

    loss: float
    """Weighted sum of the terms, each a mean over the global batch; nats for a language model."""
    terms: dict[str, float]
    gradient_norm: float
    """Global L2 norm before clipping."""
    learning_rate: float
    num_tokens: int
    skipped: bool


def train_step(state: TrainState, micro_batches: Sequence[Batch], trainer: Trainer) -> StepResult:
    """Advance ``state`` by one global batch.

    A step whose loss or gradient norm is not finite is skipped: the step number and the position in the data advance,
    weights, moments and the number of updates do not. Every rank decides alike, since both numbers are global.
    """
    world, objective, progress = trainer.world, trainer.objective, state.progress
    counts = global_counts(micro_batches, objective, world)
    sums = trainer.executor(state.model, micro_batches, objective, counts)
    state.model.fold_tied_gradients()
    slots = state.slots()
    gradients = [slot.gradient for slot in slots]
    world.sum_gradients(gradients)
    terms = global_means(sums, counts, world)
    loss = sum(objective.weights[name] * mean for name, mean in terms.items())
    norm = float(torch.nn.utils.get_total_norm(gradients))
    skipped = not (math.isfinite(loss) and math.isfinite(norm))
    learning_rate = trainer.schedule(progress.num_updates)
    if not skipped:
        if trainer.clip_norm is not None:
            clip_by_global_norm(gradients, norm, trainer.clip_norm)
        trainer.update.apply(slots, learning_rate, progress.inherited_updates + progress.num_updates + 1)
    state.model.zero_grad(set_to_none=True)
    num_tokens = max(counts.values())
    _advance(state, num_samples=_num_samples(micro_batches) * world.size, num_tokens=num_tokens, skipped=skipped)
    return StepResult(
        loss=loss,
        terms=terms,
        gradient_norm=norm,
        learning_rate=learning_rate,
        num_tokens=num_tokens,
        skipped=skipped,
    )


def global_counts(micro_batches: Sequence[Batch], objective: Objective, world: World) -> dict[str, int]:
    """Return by term the scored items of the global batch: all micro-batches of all ranks."""
    own = [objective.counts(batch) for batch in micro_batches]
    names = list(objective.weights)
    return dict(zip(names, world.sum_integers([sum(count[name] for count in own) for name in names]), strict=True))


def global_means(sums: dict[str, Tensor], counts: dict[str, int], world: World) -> dict[str, float]:
    """Return by term the sum over all ranks divided by the global count."""
    total = world.sum_tensor(torch.stack(list(sums.values())))
    return {name: value / max(counts[name], 1) for name, value in zip(sums, total.tolist(), strict=True)}


def _num_samples(micro_batches: Sequence[Batch]) -> int:
    return sum(len(batch["tokens"]) for batch in micro_batches)


def _advance(state: TrainState, *, num_samples: int, num_tokens: int, skipped: bool) -> None:
    progress = state.progress
    progress.step += 1
    progress.samples += num_samples
    progress.tokens += num_tokens
    progress.num_updates += not skipped
    progress.skipped_steps += skipped
    progress.skipped_in_a_row = progress.skipped_in_a_row + 1 if skipped else 0
