"""A model's mode: in training dropout is on, everywhere else it is off."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout off for a while; the model is left in the mode in which it came, after an error, too."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
