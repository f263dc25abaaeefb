"""The plain executor: the whole model on the device, one micro-batch after the other."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hornbook.engine.state import TrainState
from hornbook.objective import Objective, weighted_loss
from hornbook.samples.batches import Batch, to_device


def resident(
    state: TrainState, micro_batches: Sequence[Batch], objective: Objective, counts: Mapping[str, int]
) -> dict[str, Tensor]:
    """Run one micro-batch after the other, then add up the gradients of all ranks (see ``Executor``)."""
    model = state.model
    totals = {name: torch.zeros((), dtype=torch.float32, device=model.device) for name in objective.weights}
    for micro_batch in micro_batches:
        sums = model(objective.sums, to_device(micro_batch, model.device))
        weighted_loss(sums, counts, objective.weights).backward()  # type: ignore[no-untyped-call]
        for name, total in sums.items():
            totals[name] += total.detach()
    for part in state.home.parts():
        state.home.keep_gradients(part)
    return totals
