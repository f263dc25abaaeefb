"""Gradient descent, plain and with momentum: torch's fused pass over slots.

::

    g += decay · w;   b = μ b + g
    w -= lr · g                 plain
    w -= lr · b                 heavy ball
    w -= lr · (g + μ b)         Nesterov's, as Sutskever et al. 2013 have it, and TensorFlow
"""

from collections.abc import Sequence

from torch.optim.sgd import sgd as torch_sgd

from hornbook.config.optimizers import MomentumConfig, SGDConfig
from hornbook.optim.slots import Slot, by_group


def sgd(slots: Sequence[Slot], config: SGDConfig, *, learning_rate: float, count: int = 1) -> None:
    """Gradient descent, in place, whatever the update's number; slots with ``decay`` false are not decayed."""
    _by_group(slots, config.weight_decay, learning_rate)


def momentum(slots: Sequence[Slot], config: MomentumConfig, *, learning_rate: float, count: int = 1) -> None:
    """Gradient descent with momentum, in place: b is the state ``momentum``, zero before the first update."""
    _by_group(slots, config.weight_decay, learning_rate, config.momentum, nesterov=config.nesterov)


def _by_group(
    slots: Sequence[Slot], weight_decay: float, learning_rate: float, factor: float = 0.0, *, nesterov: bool = False
) -> None:
    for decay, scale, group in by_group(slots):
        torch_sgd(
            [slot.parameter for slot in group],
            [slot.gradient for slot in group],
            [slot.state.get("momentum") for slot in group],
            fused=True,
            weight_decay=weight_decay if decay else 0.0,
            momentum=factor,
            lr=learning_rate * scale,
            dampening=0.0,
            nesterov=nesterov,
            maximize=False,
        )
