"""Forward passes without gradients, for evaluation and generation.

::

    forward(model, batch, use) -> use(model.head, x_BTD, batch), the same on every rank that holds a part of the model

Evaluation and generation take a ``Forward``, so the same code serves models in the memory of one device
(``forward_resident``), models split over ranks (``forward_split``) and models in files.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from hornbook.model.language_model import LanguageModel
from hornbook.samples.batches import Batch, to_device

Result = TypeVar("Result")


class Forward(Protocol):
    """A forward pass of one batch through a model in evaluation mode."""

    def __call__(self, model: LanguageModel, batch: Batch, use: Callable[[Any, Tensor, Batch], Result], /) -> Result:
        """Return ``use(head, x_BTD, batch)`` on all ranks, without gradients.

        Args:
            model: in evaluation mode.
            batch: in host memory; ``use`` gets it on the model's device.
            use: called with the head, the last block's hidden states ``[B, T, D]`` and the batch; returns a tensor on
                the model's device, or a mapping or tuple of tensors.
        """
        ...


@torch.no_grad()
def forward_resident(model: LanguageModel, batch: Batch, use: Callable[[Any, Tensor, Batch], Result], /) -> Result:
    """Run a model that is entirely in the memory of its device (see ``Forward``)."""
    result: Result = model(use, to_device(batch, model.device))
    return result


def forward_split(model: LanguageModel, batch: Batch, use: Callable[[Any, Tensor, Batch], Result], /) -> Result:
    """Run a model whose weights are split over ranks, which must all call this equally often (see ``Forward``).

    It differs from ``forward_resident`` by identity only: generation then computes whole windows, without a cache.
    """
    return forward_resident(model, batch, use)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode inside the ``with`` block, and restore its mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
