"""One training step: count, forward and backward, sum over ranks, look, update.

::

    micro-batches -> counts of the global batch -> executor -> gradients -> sum over ranks -> norm
                                                                  finite?  yes: clip, update
                                                                           no:  skip, count, go on
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hornbook.config.optimizers import ClipScope
from hornbook.engine.executors import Executor, resident
from hornbook.engine.loss_scale import Scaled, no_scale
from hornbook.engine.state import TrainState
from hornbook.objective import Objective
from hornbook.optim.clipping import clip
from hornbook.optim.norms import norms_of
from hornbook.optim.updates import Update
from hornbook.parallel.world import World
from hornbook.samples.batches import Batch, Size, size_of


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
    clip_scope: ClipScope = "global"
    loss_scale: Callable[[int], float] = no_scale
    """From the number of the update, from 0, to the factor of its loss."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step did, the same on every rank."""

    loss: float | None
    """Weighted sum of the terms, each a mean over the global batch; nats for a language model. None: nothing scored."""
    terms: dict[str, float | None]
    gradient_norm: float
    """Global L2 norm before clipping."""
    learning_rate: float
    num_tokens: int
    """Tokens of the global batch that count: scored ones, or those of an encoder without padding."""
    padding: float
    """Share of the places of the global batch that hold padding."""
    skipped: bool


def train_step(state: TrainState, micro_batches: Sequence[Batch], trainer: Trainer) -> StepResult:
    """Advance ``state`` by one global batch.

    A step whose loss or gradient norm is not finite is skipped: the step number and the position in the data advance,
    weights, moments and the number of updates do not. Every rank decides alike, since both numbers are global.
    """
    world, objective, progress = trainer.world, trainer.objective, state.progress
    counts, size = global_counts(micro_batches, objective, world)
    scale = trainer.loss_scale(progress.num_updates)
    sums = trainer.executor(state.model, micro_batches, Scaled(objective, scale), counts)
    state.model.fold_tied_gradients()
    state.share_gradients(world)
    slots = state.slots()
    gradients = [slot.gradient for slot in slots]
    if scale != 1.0:
        torch._foreach_div_(gradients, scale)
    terms = global_means(sums, counts, world)
    scored = {name: mean for name, mean in terms.items() if mean is not None}
    norm = float(norms_of(gradients).norm())
    skipped = not all(map(math.isfinite, (*scored.values(), norm)))
    learning_rate = trainer.schedule(progress.num_updates)
    if not skipped:
        clip(gradients, norm, trainer.clip_norm, trainer.clip_scope)
        trainer.update.apply(slots, learning_rate, progress.inherited_updates + progress.num_updates + 1)
    state.model.zero_grad(set_to_none=True)
    _advance(state, size, skipped=skipped)
    return StepResult(
        loss=_weighted_sum(scored, objective.weights),
        terms=terms,
        gradient_norm=norm,
        learning_rate=learning_rate,
        num_tokens=size.tokens,
        padding=size.padding / max(size.tokens + size.padding, 1),
        skipped=skipped,
    )


def global_counts(micro_batches: Sequence[Batch], objective: Objective, world: World) -> tuple[dict[str, int], Size]:
    """Return by term the scored items of the global batch, all micro-batches of all ranks, and its size."""
    counts = [objective.counts(batch) for batch in micro_batches]
    own = [sum(count[name] for count in counts) for name in objective.weights]
    own += map(sum, zip(*map(size_of, micro_batches), strict=True))
    everywhere = world.sum_integers(own)
    size = Size(*everywhere[len(objective.weights) :])
    return dict(zip(objective.weights, everywhere, strict=False)), size


def global_means(sums: dict[str, Tensor], counts: dict[str, int], world: World) -> dict[str, float | None]:
    """Return by term the sum over all ranks divided by the global count, None where nothing is scored."""
    total = world.sum_tensor(torch.stack(list(sums.values())))
    return {
        name: value / counts[name] if counts[name] else None for name, value in zip(sums, total.tolist(), strict=True)
    }


def _weighted_sum(terms: Mapping[str, float], weights: Mapping[str, float]) -> float | None:
    return sum(weights[name] * mean for name, mean in terms.items()) if any(weights[name] for name in terms) else None


def _advance(state: TrainState, size: Size, *, skipped: bool) -> None:
    progress = state.progress
    progress.step += 1
    progress.samples += size.samples
    progress.tokens += size.tokens
    progress.num_updates += not skipped
    progress.skipped_steps += skipped
    progress.skipped_in_a_row = progress.skipped_in_a_row + 1 if skipped else 0
