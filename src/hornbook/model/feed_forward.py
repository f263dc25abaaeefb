"""The position-wise half of a block: up, activation, down."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.model.layers import Linear


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def _relu_squared(x: Tensor) -> Tensor:
    return torch.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,  # BERT, erf
    "gelu_tanh": _gelu_tanh,  # GPT-2's "gelu_new"
    "relu": torch.relu,
    "relu_squared": _relu_squared,  # Primer, So et al. 2021
    "silu": functional.silu,
}


class FeedForward(nn.Module):
    """``y = W₂ f(W₁ x + b₁) + b₂`` (Vaswani et al. 2017, equation 2), any activation ``f`` of ``ACTIVATIONS``."""

    def __init__(
        self, hidden_size: int, feed_forward_size: int, *, activation: str, std: float, out_std: float
    ) -> None:
        super().__init__()
        self.up = Linear(hidden_size, feed_forward_size, std=std)
        self.activation = ACTIVATIONS[activation]
        self.down = Linear(feed_forward_size, hidden_size, std=out_std)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        y_BTD: Tensor = self.down(self.activation(self.up(x_BTD)))
        return y_BTD
