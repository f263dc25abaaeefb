"""Let one rank of the first start raise an exception inside of a step: its ``sitecustomize`` calls this."""

from typing import NoReturn

import torch

from hornbook.engine import phased, pipeline, step
from hornbook.errors import DataError
from hornbook.samples.batches import Batch, to_device

ERRORS: dict[str, Exception] = {
    "DataError": DataError("cannot read the data"),
    "ZeroDivisionError": ZeroDivisionError("no such number"),
    "OSError": OSError(5, "Input/output error"),
    "RuntimeError": RuntimeError("a kernel failed"),
}
"""Of hornbook, with a line of its own, of a bug, of the system and as PyTorch raises them."""


def raise_at(micro_batch: int, name: str) -> None:
    """Raise the error ``name`` where the n-th micro-batch of the run begins, in whatever executor."""
    begun = 0

    def move(batch: Batch, device: torch.device) -> Batch:
        nonlocal begun
        begun += 1
        if begun == micro_batch:
            fail()
        return to_device(batch, device)

    def fail() -> NoReturn:
        raise ERRORS[name]

    for module in (step, phased, pipeline):
        module.to_device = move  # type: ignore[attr-defined]
