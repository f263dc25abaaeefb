"""The layers that everything is made of: a linear map, a layer norm and dropout.

Parameters are fp32 and stay so: they are the master weights. The *activations* carry the compute dtype, chosen once
by the embedding, and every layer casts its weights to the dtype of what comes in::

    x bf16  ->  Linear(weight fp32)  ->  y bf16,   weight.grad fp32

The price is one cast of the weights a micro-batch (2 of the 6 bytes a parameter that the update reads anyway); what it
buys is that there is no second copy of the weights to keep in step, and that gradients add up in fp32. Layer norm on a
CPU takes its parameters as they are (`hornbook.ops.layer_norm`).
"""

import torch
from torch import Tensor, nn

from hornbook.model.initialize import Draw
from hornbook.ops.dropout import dropout
from hornbook.ops.layer_norm import layer_norm
from hornbook.ops.linear import linear


class Linear(nn.Module):
    """``y = x Wᵀ + b`` in the dtype of ``x``.

    Args:
        num_in: size of the last dimension of the input.
        num_out: size of the last dimension of the output.
        std: standard deviation of the initial weights; biases start at zero.
        bias: whether there is a ``b``.
    """

    def __init__(self, num_in: int, num_out: int, *, std: float, bias: bool = True) -> None:
        super().__init__()
        self.std = std
        self.weight = nn.Parameter(torch.empty(num_out, num_in))
        self.bias = nn.Parameter(torch.empty(num_out)) if bias else None

    def draw(self, draw: Draw) -> None:
        """Fill the parameters with their initial values."""
        draw.normal(self.weight, "weight", self.std)
        draw.constant(self.bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., num_in]`` to ``[..., num_out]``."""
        return linear(x, self.weight, self.bias)


class LayerNorm(nn.Module):
    """Layer normalization (Ba et al. 2016) over the last dimension, in the dtype of its input, statistics in fp32."""

    def __init__(self, size: int, *, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(size))
        self.bias = nn.Parameter(torch.empty(size))

    def draw(self, draw: Draw) -> None:
        """Fill the parameters with their initial values."""
        draw.constant(self.weight, 1.0)
        draw.constant(self.bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``[..., size]`` to zero mean and unit variance, then scale and shift."""
        return layer_norm(x, self.weight, self.bias, self.epsilon)


class Dropout(nn.Module):
    """`hornbook.ops.dropout` at one site of the model, in training alone.

    Args:
        probability: share of elements to drop; 0 makes the layer the identity.
        site: a number that no other dropout of the model has.
    """

    def __init__(self, probability: float, *, site: int) -> None:
        super().__init__()
        self.probability = probability
        self.site = site

    def forward(self, x: Tensor, keys: Tensor) -> Tensor:
        """Drop elements of ``x`` ``[..., C]``; ``keys`` is ``[...]`` int64."""
        if not self.training or self.probability == 0.0:
            return x
        return dropout(x, keys, self.site, self.probability)
