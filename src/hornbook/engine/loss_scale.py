"""Loss scaling: multiply the loss by a factor before the backward pass and divide the gradients by it afterwards.

    scale 128:   weights of the terms · 128  ->  backward  ->  gradients / 128  ->  norm, clipping, update

Scaling keeps small gradients from underflowing in the backward pass (Micikevicius et al. 2018). The smallest fp16
number is 6e-8; fp32 and bf16 reach 1e-38 and need no scale: there, a power of two changes no bit, and other factors
only rounding.

A changing scale is part of ``Progress``, so that resumed runs continue with it:

    dynamic      overflow: halved, and the update is skipped; doubled after a number of updates without overflow
    histogram    halved after an update in which more than 1e-7 of the gradients of activations were greater than 1/16
                 of the maximum of their dtype, otherwise doubled, as in PopART; overflows as above
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hornbook.config.optimizers import value_at
from hornbook.engine.state import Progress
from hornbook.objective import Objective
from hornbook.parallel.world import World
from hornbook.samples.batches import Batch

SMALLEST = 1.0
FIRST_SCALE, _LARGEST = 2.0**15, 2.0**24
_NEAR = 0.0625
_MAX_SHARE = 1e-7


class Scaled:
    """An objective with the sums and counts of another one and its loss multiplied by ``scale``."""

    def __init__(self, objective: Objective, scale: float) -> None:
        self._objective = objective
        self.weights: Mapping[str, float] = {name: weight * scale for name, weight in objective.weights.items()}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the counts of the other objective."""
        return self._objective.counts(batch)

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the sums of the other objective."""
        return self._objective.sums(head, x_BTD, batch)


class LossScale(Protocol):
    """The loss scale of each step."""

    def value(self, progress: Progress) -> float:
        """Return the scale of the next step."""

    def adapt(self, progress: Progress, *, overflowed: bool) -> bool:
        """Update the scale in ``progress`` after a step whose loss was finite.

        Args:
            progress: of the run.
            overflowed: whether a gradient was not finite, so that the update is skipped.

        Returns:
            Whether an overflow has lowered the scale.
        """


class StaticScale:
    """A scale that depends only on the number of the update."""

    def __init__(self, by_update: Mapping[int, float]) -> None:
        self._by_update = by_update

    def value(self, progress: Progress) -> float:
        return value_at(self._by_update, progress.num_updates)

    def adapt(self, progress: Progress, *, overflowed: bool) -> bool:
        return False


class DynamicScale:
    """A scale that is halved at an overflow and doubled after ``interval`` updates without one."""

    def __init__(self, first: float, interval: int) -> None:
        self._first, self._interval = first, interval

    def value(self, progress: Progress) -> float:
        return self._first if progress.loss_scale is None else progress.loss_scale

    def adapt(self, progress: Progress, *, overflowed: bool) -> bool:
        scale = self.value(progress)
        progress.loss_scale = scale
        if overflowed:
            progress.updates_at_scale = 0
            progress.loss_scale = max(scale / 2, SMALLEST)
            return progress.loss_scale < scale
        progress.updates_at_scale += 1
        if progress.updates_at_scale >= self._interval:
            progress.loss_scale, progress.updates_at_scale = max(scale, min(2 * scale, _LARGEST)), 0
        return False


class HistogramScale(DynamicScale):
    """A scale that follows a two-bin histogram of the gradients of all matrices' outputs.

    Args:
        first: scale of the first step.
        model: its modules with matrices as weights are observed.
        world: its ranks sum their counts.
    """

    def __init__(self, first: float, model: nn.Module, world: World) -> None:
        super().__init__(first, interval=1)
        self._axes = (world.data, world.tensor, world.pipeline)
        self._is_narrow = False
        self._total, self._above = 0, torch.zeros((), dtype=torch.int64)
        for module in model.modules():
            weight = getattr(module, "weight", None)
            if isinstance(weight, Tensor) and weight.dim() > 1:
                module.register_forward_hook(self._watch)

    def value(self, progress: Progress) -> float:
        """Return the scale of the next step, and reset the histogram."""
        self._total, self._above = 0, torch.zeros_like(self._above)
        return super().value(progress)

    def adapt(self, progress: Progress, *, overflowed: bool) -> bool:
        counts = [int(self._above), self._total, int(self._is_narrow)]
        for ranks in self._axes:
            counts = ranks.sum_integers(counts)
        above, total, is_narrow = counts
        scale = super().value(progress)
        if overflowed or above > _MAX_SHARE * total:
            progress.loss_scale = max(scale / 2, SMALLEST)
        else:
            progress.loss_scale = min(2 * scale, FIRST_SCALE if is_narrow else _LARGEST)
        return overflowed and progress.loss_scale < scale

    def _watch(self, module: nn.Module, given: object, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(self._count)  # type: ignore[no-untyped-call]

    def _count(self, gradient: Tensor) -> None:
        self._is_narrow = gradient.dtype == torch.float16
        self._total += gradient.numel()
        near = _NEAR * torch.finfo(gradient.dtype).max
        self._above = self._above.to(gradient.device) + (gradient.detach().abs() > near).sum()
