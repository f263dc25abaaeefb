"""Executors run the forward and backward passes of a global batch.

::

    executor(state, micro_batches, objective, counts, begin)
        -> sums of the terms, and *global* gradients in ``state.home``

``resident``, in `hornbook.engine.step`, keeps the whole model on the device. Pipeline and phased execution have the
same signature, so the step needs no branch for them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from hornbook.engine.state import TrainState
from hornbook.objective import Objective
from hornbook.samples.batches import Batch


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
