"""GroupBERT's block: four pre-norm residual modules (Chelombiev et al. 2021).

::

    x + convolution(norm(x))      gate, then a convolution over neighboring tokens in groups of 16 channels
      + feed_forward(norm(x))     up, activation, grouped linear layer (4 groups), linear layer
      + attention(norm(x))
      + feed_forward(norm(x))

The convolution pads each sequence with zeros (`hornbook.ops.sequence_groups.convolve`).
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.config import GroupBertConfig
from hornbook.model.attention import Context, EncoderSelfAttention
from hornbook.model.initialize import Draw
from hornbook.model.layers import Dropout, LayerNorm, Linear, activated
from hornbook.ops.layers import grouped_linear
from hornbook.ops.sequence_groups import convolve

_SITES_PER_BLOCK = 5


class GatedConvolution(nn.Module):
    """``W₂ silu(norm(conv(sigmoid(a) · b)))`` with ``[a, b] = W₁ x``; the convolution is grouped.

    Args:
        hidden_size: D.
        kernel_size: in tokens, odd.
        group_size: channels of a group.
        epsilon: of the norm.
        std: standard deviation of the initial weights.
    """

    def __init__(
        self,
        hidden_size: int,
        kernel_size: int,
        group_size: int,
        *,
        epsilon: float,
        std: float,
    ) -> None:
        super().__init__()
        self.std = std
        self.up = Linear(hidden_size, 2 * hidden_size, std=std)
        self.filter_weight = nn.Parameter(torch.empty(hidden_size, group_size, kernel_size))
        self.filter_bias = nn.Parameter(torch.empty(hidden_size))
        self.norm = LayerNorm(hidden_size, epsilon=epsilon)
        self.down = Linear(hidden_size, hidden_size, std=std)

    def draw(self, draw: Draw) -> None:
        """Initialize the filter."""
        draw.normal(self.filter_weight, "filter_weight", self.std)
        draw.constant(self.filter_bias, 0.0)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``; ``context`` has the entries of ``SpacedSequences``."""
        gate_BTD, value_BTD = self.up(x_BTD).chunk(2, -1)
        gated_ND = (torch.sigmoid(gate_BTD) * value_BTD).flatten(0, 1)
        gather_index, scatter_index = context["column_gather_index"], context["column_scatter_index"]
        mixed_ND = convolve(gated_ND, self.filter_weight, self.filter_bias, gather_index, scatter_index)
        y_BTD: Tensor = self.down(functional.silu(self.norm(mixed_ND))).view_as(x_BTD)
        return y_BTD


class GroupedLinear(nn.Module):
    """A grouped linear layer: each group of outputs depends on one group of inputs.

    Args:
        num_in: size of the last dimension of the input.
        num_out: size of the last dimension of the output.
        num_groups: divides both sizes.
        std: standard deviation of the initial weights.
    """

    def __init__(self, num_in: int, num_out: int, num_groups: int, *, std: float) -> None:
        super().__init__()
        self.std = std
        self.weight = nn.Parameter(torch.empty(num_groups, num_out // num_groups, num_in // num_groups))
        self.bias = nn.Parameter(torch.empty(num_out))

    def draw(self, draw: Draw) -> None:
        draw.normal(self.weight, "weight", self.std)
        draw.constant(self.bias, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., num_in]`` to ``[..., num_out]``."""
        return grouped_linear(x, self.weight, self.bias)


class GroupedFeedForward(nn.Module):
    """``W₃ grouped(f(W₁ x))``: the large second layer is grouped, and a small dense one mixes all channels."""

    def __init__(
        self,
        hidden_size: int,
        feed_forward_size: int,
        num_groups: int,
        *,
        activation: str,
        std: float,
    ) -> None:
        super().__init__()
        self.up = Linear(hidden_size, feed_forward_size, std=std)
        self.activation = activation
        self.grouped = GroupedLinear(feed_forward_size, hidden_size, num_groups, std=std)
        self.down = Linear(hidden_size, hidden_size, std=std)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        y_BTD: Tensor = self.down(self.grouped(activated(self.up, x_BTD, self.activation)))
        return y_BTD


class GroupBlock(nn.Module):
    """GroupBERT's block.

    Args:
        config: sizes and options of the model.
        index: the block's index in the whole model, on every pipeline stage: dropout sites depend on it.
    """

    def __init__(self, config: GroupBertConfig, index: int) -> None:
        super().__init__()
        self.index = index
        size, std, epsilon = config.hidden_size, config.initializer_std, config.layer_norm_epsilon
        attention_site, *sites = (index * _SITES_PER_BLOCK + site for site in range(1, _SITES_PER_BLOCK + 1))
        self.norms = nn.ModuleList(LayerNorm(size, epsilon=epsilon) for _ in sites)
        self.dropouts = nn.ModuleList(Dropout(config.residual_dropout, site=site) for site in sites)
        self.convolution = GatedConvolution(
            size,
            config.convolution_kernel,
            config.convolution_group_size,
            epsilon=epsilon,
            std=std,
        )
        self.first_feed_forward, self.second_feed_forward = (
            GroupedFeedForward(
                size,
                config.effective_feed_forward_size,
                config.feed_forward_groups,
                activation=config.activation,
                std=std,
            )
            for _ in range(2)
        )
        self.attention = EncoderSelfAttention(
            size,
            config.num_heads,
            config.effective_head_size,
            dropout=Dropout(config.attention_dropout, site=attention_site),
            std=std,
            out_std=std,
            qkv_bias=config.qkv_bias,
            out_bias=config.projection_bias,
        )

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        modules: tuple[Callable[[Tensor], Tensor], ...] = (
            lambda x: self.convolution(x, context),
            self.first_feed_forward,
            lambda x: self.attention(x, context),
            self.second_feed_forward,
        )
        for module, norm, dropout in zip(modules, self.norms, self.dropouts, strict=True):
            x_BTD, normed_BTD = cast(LayerNorm, norm).beside(x_BTD)
            x_BTD = dropout(module(normed_BTD), context["keys"], x_BTD)
        return x_BTD
