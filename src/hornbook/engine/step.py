"""One training step: count scored items, run forward and backward, sum over ranks, check for overflow, update.

::

    micro-batches -> counts of the global batch -> executor -> global gradients, part by part -> norm
                                                                  finite?  yes: clip and update each part
                                                                           no:  skip the update, count the step
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hornbook.config.optimizers import ClipScope
from hornbook.engine.loss_scale import LossScale, Scaled
from hornbook.engine.state import TrainState
from hornbook.engine.topology import Topology
from hornbook.model.language_model import Forward, forward_resident
from hornbook.objective import Objective, weighted_loss
from hornbook.ops.native.kernels import weights_unchanged
from hornbook.optim.slots import clip
from hornbook.optim.updates import Update
from hornbook.parallel.world import World
from hornbook.samples.batches import Batch, Size, size_of, to_device


class Executor(Protocol):
    """The forward and backward passes of a rank's share of the global batch."""

    def __call__(
        self,
        state: TrainState,
        micro_batches: Sequence[Batch],
        objective: Objective,
        counts: Mapping[str, int],
        begin: Callable[[int], None],
    ) -> dict[str, Tensor]:
        """Store the gradient of the global loss in ``state.home`` and return the sums of this rank's terms.

        Args:
            state: its model is in training mode, its home has no gradients.
            micro_batches: this rank's, in host memory; each is copied to the device when it is needed.
            objective: computes the sums.
            counts: scored items of the *global* batch, by term.
            begin: called with the number of each micro-batch, from 0, before it is computed. If it raises, the step is
                abandoned, and the caller drops its gradients.

        Returns:
            The sum of each term over this rank's samples, an fp32 scalar without a gradient; zero on ranks that do not
            hold the head.
        """


def resident(
    state: TrainState,
    micro_batches: Sequence[Batch],
    objective: Objective,
    counts: Mapping[str, int],
    begin: Callable[[int], None],
    *,
    whole_gradients: bool = False,
) -> dict[str, Tensor]:
    """Run the micro-batches one by one through a model that is entirely on the device (see ``Executor``).

    With ``whole_gradients``, sharded ranks keep unsharded gradients until the last micro-batch.
    """
    model = state.model
    device = next(model.parameters()).device
    totals = {name: torch.zeros((), dtype=torch.float32, device=device) for name in objective.weights}
    for number, micro_batch in enumerate(micro_batches):
        begin(number)
        state.home.expect_gradients(is_last=number == len(micro_batches) - 1, whole=whole_gradients)
        sums = model(objective.sums, to_device(micro_batch, device))
        weighted_loss(sums, counts, objective.weights).backward()  # type: ignore[no-untyped-call]
        for name, total in sums.items():
            totals[name] += total.detach()
    for part in state.home.parts:
        state.home.keep_gradients(part)
    return totals


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """The fixed parts of a step."""

    objective: Objective
    update: Update
    schedule: Callable[[int], float]
    """Maps the number of the update, from 0, to the learning rate."""
    clip_norm: float | None
    world: World
    executor: Executor = resident
    forward: Forward = forward_resident
    """Runs the model for validation, tasks and samples; it belongs to the executor."""
    clip_scope: ClipScope = "global"
    loss_scale: LossScale | None = None
    """None: always 1."""
    topology: Topology | None = None
    """Updates the patterns of block-sparse layers; None if there are none or they are fixed."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The results of one step, the same on every rank."""

    sums: dict[str, float]
    """Sum of each term over the global batch."""
    counts: dict[str, int]
    """Number of scored items of the global batch, by term."""
    weights: Mapping[str, float]
    """Weight of each term in the loss."""
    size: Size
    """Size of the global batch."""
    gradient_norm: float
    """Global L2 norm before clipping."""
    learning_rate: float
    skipped: bool
    loss_scale: float = 1.0
    rewired: Sequence[Mapping[str, object]] = ()
    """The changes to the pattern of each block-sparse layer, if the step changed them."""

    @property
    def loss(self) -> float | None:
        """Weighted sum of the terms, each a mean over the global batch, in nats; None if no item is scored."""
        return losses(self.sums, self.counts, self.weights)[0]

    @property
    def terms(self) -> dict[str, float | None]:
        """``sums / counts`` of each term; None if no item is scored."""
        return losses(self.sums, self.counts, self.weights)[1]


def train_step(
    state: TrainState,
    micro_batches: Sequence[Batch],
    config: StepConfig,
    begin: Callable[[int], None] = lambda number: None,
    on_gradients: Callable[[int], None] = lambda count: None,
) -> StepResult:
    """Advance ``state`` by one global batch.

    ``begin`` is called with the number of each micro-batch, from 0, before it is computed. If it raises, the step ends
    without an update; ``state.home.drop_gradients()`` restores the state before the step. ``on_gradients`` is called
    with the number of the update before it, when ``state.home`` has the unclipped gradients of the global loss.

    If the global loss or gradient norm is not finite, the update is skipped: step number and data advance, nothing else
    does. Overflows that lower the loss scale are not counted in ``Progress.skipped_in_a_row``.
    """
    home, progress, ranks = state.home, state.progress, config.world.data
    objective, weights = config.objective, config.objective.weights
    counted = [(*map(objective.counts(batch).__getitem__, weights), *size_of(batch)) for batch in micro_batches]
    numbers = ranks.sum_integers([*map(sum, zip(*counted, strict=True))])  # of all ranks: scored items, then the size
    counts, size = dict(zip(weights, numbers, strict=False)), Size(*numbers[len(weights) :])
    scale = config.loss_scale.value(progress) if config.loss_scale else 1.0
    if topology := config.topology:
        topology.watch(progress.num_updates + 1)
    with weights_unchanged(None if config.world.is_sharded else home.copies if config.update.writes_copies else {}):
        scaled = objective if scale == 1.0 else Scaled(objective, scale)
        own_sums = config.executor(state, micro_batches, scaled, counts, begin)
    sums = dict(zip(own_sums, ranks.sum_tensor(torch.stack([*own_sums.values()])).tolist(), strict=True))  # waits, once
    if scale != 1.0:
        home.divide_gradients(scale)
    norm = float(torch.cat([home.gradient_norms(part) for part in home.parts]).norm())
    is_finite = all(math.isfinite(total) for name, total in sums.items() if counts[name])
    skipped = not (is_finite and math.isfinite(norm))
    rescaled = is_finite and config.loss_scale is not None and config.loss_scale.adapt(progress, overflowed=skipped)
    learning_rate, count = config.schedule(progress.num_updates), progress.inherited_updates + progress.num_updates + 1
    if not skipped:
        on_gradients(count)
        for part in home.parts:
            with home.slots(part, count) as slots:
                clipped = clip(slots, norm, config.clip_norm, config.clip_scope, by_update=config.update.clips)
                config.update.apply(clipped, learning_rate, count)
    rewired = topology.rewire(home, progress.num_updates + 1, count) if topology and not skipped else ()
    home.drop_gradients()
    progress.step += 1
    progress.samples += size.samples
    progress.tokens += size.tokens
    progress.num_updates += not skipped
    progress.skipped_steps += skipped
    progress.skipped_in_a_row = progress.skipped_in_a_row + (not rescaled) if skipped else 0
    return StepResult(
        sums=sums,
        counts=counts,
        weights=weights,
        size=size,
        gradient_norm=norm,
        learning_rate=learning_rate,
        skipped=skipped,
        loss_scale=scale,
        rewired=rewired,
    )


def losses(
    sums: Mapping[str, float], counts: Mapping[str, int], weights: Mapping[str, float]
) -> tuple[float | None, dict[str, float | None]]:
    """Return the loss, the weighted sum of the terms, and the terms, each its sum divided by its count.

    A term is None if none of its items is scored, and the loss if that holds for all terms with a weight.
    """
    terms = {name: total / counts[name] if counts[name] else None for name, total in sums.items()}
    scored = {name: mean for name, mean in terms.items() if mean is not None}
    has_weight = any(weights[name] for name in scored)
    return sum(weights[name] * mean for name, mean in scored.items()) if has_weight else None, terms
