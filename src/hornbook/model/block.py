"""Transformer blocks: attention and a feed-forward, each with a norm, a dropout and a residual connection."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from hornbook.config import EncoderConfig, TransformerConfig
from hornbook.model.attention import CausalSelfAttention, Context, EncoderSelfAttention, SelfAttention
from hornbook.model.incremental import IncrementalBlock, incremental_form, token_form
from hornbook.model.layers import Dropout, LayerNorm, Linear, MakeLinear
from hornbook.ops.layers import ACTIVATIONS

_SITES_PER_BLOCK = 3
MakeNorm = Callable[[int], LayerNorm]


class FeedForward(nn.Module):
    """``y = W₂ f(W₁ x + b₁) + b₂`` (Vaswani et al. 2017, equation 2), any activation ``f`` of ``ACTIVATIONS``."""

    def __init__(
        self,
        hidden_size: int,
        feed_forward_size: int,
        *,
        activation: str,
        std: float,
        out_std: float,
        make_linear: MakeLinear = Linear,
    ) -> None:
        super().__init__()
        self.up = make_linear(hidden_size, feed_forward_size, std=std)
        self.activation = ACTIVATIONS[activation]
        self.down = make_linear(feed_forward_size, hidden_size, std=out_std)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        y_BTD: Tensor = self.down(self.activation(self.up(x_BTD)))
        return y_BTD

    def incremental(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        """Return the feed-forward with weights cast once to ``dtype``."""
        up, down = token_form(self.up, dtype), token_form(self.down, dtype)
        return lambda x_BTD: down(self.activation(up(x_BTD)))


class _Block(nn.Module):
    """The parts of a block.

    Args:
        config: sizes and options of the model.
        index: the block's number in the whole model, kept on every pipeline stage: dropout sites depend on it.
        attention: makes it, called as ``SelfAttention`` is.
        out_std: standard deviation of the initial weights of the two last layers.
        qkv_bias: whether query, key and value have biases.
        out_bias: whether the attention's output has one.
        make_linear: makes the linear maps.
        make_norm: makes a norm of so many columns; None: layer norms.
    """

    def __init__(
        self,
        config: TransformerConfig,
        index: int,
        attention: Callable[..., SelfAttention],
        *,
        out_std: float,
        qkv_bias: bool = True,
        out_bias: bool = True,
        make_linear: MakeLinear,
        make_norm: MakeNorm | None = None,
    ) -> None:
        super().__init__()
        self.index = index
        make_norm = make_norm or partial(LayerNorm, epsilon=config.layer_norm_epsilon)
        attention_site, first_site, second_site = (index * _SITES_PER_BLOCK + site for site in (1, 2, 3))
        self.attention_norm = make_norm(config.hidden_size)
        self.attention = attention(
            config.hidden_size,
            config.num_heads,
            config.effective_head_size,
            dropout=Dropout(config.attention_dropout, site=attention_site),
            std=config.initializer_std,
            out_std=out_std,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            make_linear=make_linear,
        )
        self.attention_dropout = Dropout(config.residual_dropout, site=first_site)
        self.feed_forward_norm = make_norm(config.hidden_size)
        self.feed_forward = FeedForward(
            config.hidden_size,
            config.effective_feed_forward_size,
            activation=config.activation,
            std=config.initializer_std,
            out_std=out_std,
            make_linear=make_linear,
        )
        self.feed_forward_dropout = Dropout(config.residual_dropout, site=second_site)


class PreNormBlock(_Block):
    """``x + attention(norm(x))``, then ``x + feed_forward(norm(x))`` (Radford et al. 2019).

    Args:
        config: sizes and options of the model.
        index: the block's number in the whole model, kept on every pipeline stage: dropout sites depend on it.
        make_linear: makes the linear maps.
        make_norm: makes a norm of so many columns; None: layer norms.
        attention: makes the attention, called as ``CausalSelfAttention`` is.
        qkv_bias: whether query, key and value have biases.
        out_bias: whether the attention's output has one.
    """

    def __init__(
        self,
        config: TransformerConfig,
        index: int,
        *,
        make_linear: MakeLinear = Linear,
        make_norm: MakeNorm | None = None,
        attention: Callable[..., SelfAttention] = CausalSelfAttention,
        qkv_bias: bool = True,
        out_bias: bool = True,
    ) -> None:
        super().__init__(
            config,
            index,
            attention,
            out_std=config.initializer_std / math.sqrt(2 * config.num_layers),
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            make_linear=make_linear,
            make_norm=make_norm,
        )

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        keys_BT = context["keys"]
        x_BTD, normed_BTD = self.attention_norm.beside(x_BTD)
        x_BTD = x_BTD + self.attention_dropout(self.attention(normed_BTD, context), keys_BT)
        x_BTD, normed_BTD = self.feed_forward_norm.beside(x_BTD)
        changed_BTD = self.feed_forward(normed_BTD)
        result: Tensor = x_BTD + self.feed_forward_dropout(changed_BTD, keys_BT)
        return result

    def incremental(self, dtype: torch.dtype) -> IncrementalBlock | None:
        """Return the block for new tokens, None if the attention or the feed-forward has no incremental form."""
        attention, feed_forward = (incremental_form(part, dtype) for part in (self.attention, self.feed_forward))
        if attention is None or feed_forward is None:
            return None
        return _IncrementalPreNorm(self, attention, feed_forward, dtype)


class _IncrementalPreNorm:
    def __init__(
        self,
        block: PreNormBlock,
        attention: IncrementalBlock,
        feed_forward: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
    ) -> None:
        self.cache_shape, self._attention, self._feed_forward = attention.cache_shape, attention, feed_forward
        self._attention_norm = token_form(block.attention_norm, dtype)
        self._feed_forward_norm = token_form(block.feed_forward_norm, dtype)

    def __call__(self, x_BTD: Tensor, cache_B2HSK: Tensor, mask: Tensor | None, positions_BT: Tensor) -> Tensor:
        x_BTD = x_BTD + self._attention(self._attention_norm(x_BTD), cache_B2HSK, mask, positions_BT)
        return x_BTD + self._feed_forward(self._feed_forward_norm(x_BTD))


class PostNormBlock(_Block):
    """``norm(x + attention(x))``, then ``norm(x + feed_forward(x))`` (Vaswani et al. 2017, Devlin et al. 2019).

    Args:
        config: sizes and options of the model.
        index: the block's number in the whole model, kept on every pipeline stage: dropout sites depend on it.
        make_linear: makes the linear maps.
    """

    def __init__(self, config: EncoderConfig, index: int, *, make_linear: MakeLinear = Linear) -> None:
        super().__init__(
            config,
            index,
            EncoderSelfAttention,
            out_std=config.initializer_std,
            qkv_bias=config.qkv_bias,
            out_bias=config.projection_bias,
            make_linear=make_linear,
        )

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        keys_BT = context["keys"]
        mixed_BTD = self.attention_dropout(self.attention(x_BTD, context), keys_BT)
        x_BTD = self.attention_norm(x_BTD + mixed_BTD)
        changed_BTD = self.feed_forward_dropout(self.feed_forward(x_BTD), keys_BT)
        result: Tensor = self.feed_forward_norm(x_BTD + changed_BTD)
        return result
