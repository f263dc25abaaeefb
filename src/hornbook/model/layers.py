"""The layers of all models: a linear map, a layer norm and dropout; `hornbook.ops.layers` computes them.

Parameters are fp32 and stay so: they are the master weights. The *activations* carry the compute dtype, chosen once
by the embedding, and every layer casts its weights to the dtype of its input::

    x bf16  ->  Linear(weight fp32)  ->  y bf16,   weight.grad fp32

The cast costs 2 of the 6 bytes a parameter that the update reads anyway, once a micro-batch. In return there is no
second copy of the weights, and gradients are summed in fp32.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.model.initialize import Draw
from hornbook.ops.dropout import dropout
from hornbook.ops.layers import affine_dtype, cast_for_few_rows, layer_norm, layer_norm_beside, linear


class MakeLinear(Protocol):
    """Makes the linear maps of a block: ``Linear``, or a class or function of one's own."""

    def __call__(self, num_in: int, num_out: int, *, std: float, bias: bool = True) -> nn.Module:
        """Return a module that maps each token alone, ``[..., num_in]`` to ``[..., num_out]``; see ``Linear``."""
        ...


class Linear(nn.Linear):
    """``y = x Wᵀ + b`` in the dtype of ``x``.

    Args:
        num_in: size of the last dimension of the input.
        num_out: size of the last dimension of the output.
        std: standard deviation of the initial weights; biases start at zero.
        bias: whether there is a ``b``.
    """

    def __init__(self, num_in: int, num_out: int, *, std: float, bias: bool = True) -> None:
        super().__init__(num_in, num_out, bias=bias)
        self.std = std

    def reset_parameters(self) -> None:
        """Do nothing: ``draw`` fills the parameters, from the run's seed."""

    def draw(self, draw: Draw) -> None:
        """Fill the parameters with their initial values."""
        draw.normal(self.weight, "weight", self.std)
        draw.constant(self.bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., num_in]`` to ``[..., num_out]``."""
        return linear(x, self.weight, self.bias)

    def incremental(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        """Return the map with weights cast once to ``dtype``."""
        bias = None if self.bias is None else self.bias.detach().to(dtype)
        return partial(functional.linear, weight=cast_for_few_rows(self.weight, dtype), bias=bias)


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

    def beside(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``x`` and its norm, for ``x + f(norm(x))``; the gradients of the two are added in one pass."""
        return layer_norm_beside(x, self.weight, self.bias, self.epsilon)

    def incremental(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        """Return the norm with gain and bias cast once."""
        dtype = affine_dtype(dtype, self.weight.device)
        gain, bias = self.weight.detach().to(dtype), self.bias.detach().to(dtype)
        return partial(layer_norm, weight_D=gain, bias_D=bias, epsilon=self.epsilon)


class Dropout(nn.Module):
    """`hornbook.ops.dropout.dropout` at one site of the model, in training alone.

    Args:
        probability: share of elements to drop; 0 makes the layer the identity.
        site: a number that no other dropout of the model has.
    """

    def __init__(self, probability: float, *, site: int) -> None:
        super().__init__()
        self.probability = probability
        self.site = site

    @property
    def drops(self) -> bool:
        """Whether elements are dropped now."""
        return self.training and self.probability > 0.0

    def forward(self, x: Tensor, keys: Tensor) -> Tensor:
        """Drop elements of ``x`` ``[..., C]``; ``keys`` is ``[...]`` int64."""
        return dropout(x, keys, self.site, self.probability) if self.drops else x
