"""Looking at a model without training it: a batch in, what somebody makes of its hidden states out.

::

    forward(model, batch, use) -> use(model.head, x_BTD, batch), the same on every rank that holds a part of the model

Whoever evaluates or samples goes through a ``Forward``, so that models that are cut over ranks or lie in files are
evaluated by the same code. ``forward_resident`` serves a model that lies whole in the memory of its device,
``forward_cut`` one whose weights are cut over ranks.
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
    """Takes a batch through a model that is in evaluation mode."""

    def __call__(self, model: LanguageModel, batch: Batch, use: Callable[[Any, Tensor, Batch], Result], /) -> Result:
        """Return ``use(head, x_BTD, batch)`` on all ranks, without gradients.

        Args:
            model: in evaluation mode.
            batch: in the host's memory; ``use`` gets it on the model's device.
            use: what is made of the head, the last block's hidden states ``[B, T, D]`` and the batch: a tensor on the
                model's device, or a mapping or tuple of tensors.
        """
        ...


@torch.no_grad()
def forward_resident(model: LanguageModel, batch: Batch, use: Callable[[Any, Tensor, Batch], Result], /) -> Result:
    """Call a model that lies whole in the memory of its device (see ``Forward``)."""
    result: Result = model(use, to_device(batch, model.device))
    return result


def forward_cut(model: LanguageModel, batch: Batch, use: Callable[[Any, Tensor, Batch], Result], /) -> Result:
    """Call a model whose weights are cut over ranks, which all call it as often (see ``Forward``).

    No rank has weights that it could use without the others, so generation computes whole windows.
    """
    return forward_resident(model, batch, use)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout off for a while; the model is left in the mode in which it came, after an error, too."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
