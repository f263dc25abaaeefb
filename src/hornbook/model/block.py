"""Transformer blocks: attention and a feed-forward, each with a norm, a dropout and a residual connection."""

import math

from torch import Tensor, nn

from hornbook.config import EncoderConfig, GPTConfig, TransformerConfig
from hornbook.model.attention import CausalSelfAttention, Context, SelfAttention
from hornbook.model.encoder_attention import EncoderSelfAttention
from hornbook.model.feed_forward import FeedForward
from hornbook.model.layers import Dropout, LayerNorm

_SITES_PER_BLOCK = 3


class _Block(nn.Module):
    """The parts of a block.

    Args:
        config: sizes and options of the model.
        index: the block's number in the whole model, kept on every pipeline stage: dropout sites depend on it.
        attention: of which kind.
        out_std: standard deviation of the initial weights of the two last layers.
        qkv_bias: whether query, key and value have biases.
        out_bias: whether the attention's output has one.
    """

    def __init__(
        self,
        config: TransformerConfig,
        index: int,
        attention: type[SelfAttention],
        *,
        out_std: float,
        qkv_bias: bool = True,
        out_bias: bool = True,
    ) -> None:
        super().__init__()
        self.index = index
        attention_site, first_site, second_site = (index * _SITES_PER_BLOCK + site for site in (1, 2, 3))
        self.attention_norm = LayerNorm(config.hidden_size, epsilon=config.layer_norm_epsilon)
        self.attention = attention(
            config.hidden_size,
            config.num_heads,
            config.effective_head_size,
            dropout=Dropout(config.attention_dropout, site=attention_site),
            std=config.initializer_std,
            out_std=out_std,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
        )
        self.attention_dropout = Dropout(config.residual_dropout, site=first_site)
        self.feed_forward_norm = LayerNorm(config.hidden_size, epsilon=config.layer_norm_epsilon)
        self.feed_forward = FeedForward(
            config.hidden_size,
            config.effective_feed_forward_size,
            activation=config.activation,
            std=config.initializer_std,
            out_std=out_std,
        )
        self.feed_forward_dropout = Dropout(config.residual_dropout, site=second_site)


class PreNormBlock(_Block):
    """``x + attention(norm(x))``, then ``x + feed_forward(norm(x))`` (Radford et al. 2019).

    Args:
        config: sizes and options of the model.
        index: the block's number in the whole model, kept on every pipeline stage: dropout sites depend on it.
    """

    def __init__(self, config: GPTConfig, index: int) -> None:
        out_std = config.initializer_std / math.sqrt(2 * config.num_layers)
        super().__init__(config, index, CausalSelfAttention, out_std=out_std)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``; ``context`` holds ``keys`` ``[B, T]`` and perhaps ``mask``."""
        keys_BT = context["keys"]
        mixed_BTD = self.attention(self.attention_norm(x_BTD), context)
        x_BTD = x_BTD + self.attention_dropout(mixed_BTD, keys_BT)
        changed_BTD = self.feed_forward(self.feed_forward_norm(x_BTD))
        result: Tensor = x_BTD + self.feed_forward_dropout(changed_BTD, keys_BT)
        return result


class PostNormBlock(_Block):
    """``norm(x + attention(x))``, then ``norm(x + feed_forward(x))`` (Vaswani et al. 2017, Devlin et al. 2019).

    Args:
        config: sizes and options of the model.
        index: the block's number in the whole model, kept on every pipeline stage: dropout sites depend on it.
    """

    def __init__(self, config: EncoderConfig, index: int) -> None:
        std, biases = config.initializer_std, {"qkv_bias": config.qkv_bias, "out_bias": config.projection_bias}
        super().__init__(config, index, EncoderSelfAttention, out_std=std, **biases)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``; ``context`` is that of an `hornbook.model.encoder.EncoderModel`."""
        keys_BT = context["keys"]
        mixed_BTD = self.attention_dropout(self.attention(x_BTD, context), keys_BT)
        x_BTD = self.attention_norm(x_BTD + mixed_BTD)
        changed_BTD = self.feed_forward_dropout(self.feed_forward(x_BTD), keys_BT)
        result: Tensor = self.feed_forward_norm(x_BTD + changed_BTD)
        return result
