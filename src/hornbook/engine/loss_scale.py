"""Loss scaling: the loss times a factor before the backward pass, the gradients divided by it after.

    scale 128:   weights of the terms · 128  ->  backward  ->  gradients / 128  ->  norm, clipping, update

It lifts small gradients into the range of narrow floats while they travel. fp32 and bf16 reach to 1e-38 and need none
of it; there a power of two changes no bit, and another factor only rounding. The price of having it: whoever gives one
to a bf16 run gains nothing.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from hornbook.config import PrecisionConfig
from hornbook.config.optimizers import read_steps, value_at
from hornbook.objective import Objective
from hornbook.samples.batches import Batch


class Scaled:
    """An objective with the loss of another, times ``scale``; its sums and counts are the same."""

    def __init__(self, objective: Objective, scale: float) -> None:
        self._objective = objective
        self.weights: Mapping[str, float] = {name: weight * scale for name, weight in objective.weights.items()}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Count as the other objective does."""
        return self._objective.counts(batch)

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Add up as the other objective does."""
        return self._objective.sums(head, x_BTD, batch)


def build_loss_scale(config: PrecisionConfig) -> Callable[[int], float]:
    """Return the function from the number of an update, from 0, to the scale of its loss."""
    if config.loss_scale_by_step:
        return partial(value_at, read_steps(config.loss_scale_by_step))
    return lambda update: config.loss_scale
