"""Executors take all of a rank's micro-batches, leave gradients in the parameters, and return the sums of the terms.

``resident`` keeps the whole model on the device and takes one micro-batch after the other. Pipeline and phased
execution take its place with the same signature, so the step has no branch for them.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from hornbook.model import LanguageModel
from hornbook.objective import Objective, weighted_loss
from hornbook.samples.batches import Batch, placed


class Executor(Protocol):
    """Forward and backward over a rank's share of the global batch."""

    def __call__(
        self, model: LanguageModel, micro_batches: Sequence[Batch], objective: Objective, counts: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Leave in ``.grad`` the gradient of the global loss that this rank's samples cause; return their sums.

        Args:
            model: in training mode, without gradients.
            micro_batches: all of this rank's, in the host's memory; each is moved when its turn comes.
            objective: gives the sums of its terms.
            counts: scored items of the *global* batch, by term.

        Returns:
            By term the sum over this rank's samples, an fp32 scalar without a gradient.
        """


def resident(
    model: LanguageModel, micro_batches: Sequence[Batch], objective: Objective, counts: Mapping[str, int]
) -> dict[str, Tensor]:
    """Run one micro-batch after the other through a model that is whole and on its device (see ``Executor``)."""
    device = model.embedding.tokens.device
    totals = {name: torch.zeros((), dtype=torch.float32, device=device) for name in objective.weights}
    for waiting in micro_batches:
        batch = placed(waiting, device)
        sums = objective.sums(model.head, model.trunk(batch), batch)
        weighted_loss(sums, counts, objective.weights).backward()  # type: ignore[no-untyped-call]
        for name, total in sums.items():
            totals[name] += total.detach()
    return totals
