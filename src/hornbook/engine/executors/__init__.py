"""Executors: ways to take a global batch through forward and backward.

::

    executor(state, micro_batches, objective, counts, begin)
        -> sums of the terms, and *global* gradients at ``state.home``

``resident``, in `hornbook.engine.step`, keeps the whole model on the device. Pipeline and phased execution take its
place with the same signature, so the step has no branch for them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from hornbook.engine.state import TrainState
from hornbook.objective import Objective
from hornbook.samples.batches import Batch


class Executor(Protocol):
    """Forward and backward over a rank's share of the global batch."""

    def __call__(
        self,
        state: TrainState,
        micro_batches: Sequence[Batch],
        objective: Objective,
        counts: Mapping[str, int],
        begin: Callable[[int], None],
    ) -> dict[str, Tensor]:
        """Leave the gradient of the global loss at ``state.home`` and return the sums of this rank's terms.

        Args:
            state: its model is in training mode, its home without gradients.
            micro_batches: all of this rank's, in the host's memory; each is moved when its turn comes.
            objective: gives the sums of its terms.
            counts: scored items of the *global* batch, by term.
            begin: called with the number of each micro-batch, from 0, before it is computed. It may raise: the step is
                dropped then, and the caller drops its gradients.

        Returns:
            By term the sum over this rank's samples, an fp32 scalar without a gradient; zero on a rank that does not
            hold the head.
        """
