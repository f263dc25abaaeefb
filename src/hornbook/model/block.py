"""One transformer block, pre-norm, as GPT-2 has it."""

import math

from torch import Tensor, nn

from hornbook.config import GPTConfig
from hornbook.model.attention import CausalSelfAttention, Context
from hornbook.model.dropout import Dropout
from hornbook.model.feed_forward import FeedForward
from hornbook.model.layers import LayerNorm

_SITES_PER_BLOCK = 3


class PreNormBlock(nn.Module):
    """``x + attention(norm(x))``, then ``x + feed_forward(norm(x))`` (Radford et al. 2019).

    Args:
        config: sizes and options of the model.
        index: the block's number in the whole model, kept on every pipeline stage: dropout sites depend on it.
    """

    def __init__(self, config: GPTConfig, index: int) -> None:
        super().__init__()
        self.index = index
        std, out_std = config.initializer_std, config.initializer_std / math.sqrt(2 * config.num_layers)
        attention_site, first_site, second_site = (index * _SITES_PER_BLOCK + site for site in (1, 2, 3))
        self.attention_norm = LayerNorm(config.hidden_size, epsilon=config.layer_norm_epsilon)
        self.attention = CausalSelfAttention(
            config.hidden_size,
            config.num_heads,
            config.effective_head_size,
            dropout=Dropout(config.attention_dropout, site=attention_site),
            std=std,
            out_std=out_std,
        )
        self.attention_dropout = Dropout(config.residual_dropout, site=first_site)
        self.feed_forward_norm = LayerNorm(config.hidden_size, epsilon=config.layer_norm_epsilon)
        self.feed_forward = FeedForward(
            config.hidden_size,
            config.effective_feed_forward_size,
            activation=config.activation,
            std=std,
            out_std=out_std,
        )
        self.feed_forward_dropout = Dropout(config.residual_dropout, site=second_site)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``; ``context`` holds ``keys`` ``[B, T]`` and perhaps ``mask``."""
        keys_BT = context["keys"]
        mixed_BTD = self.attention(self.attention_norm(x_BTD), context)
        x_BTD = x_BTD + self.attention_dropout(mixed_BTD, keys_BT)
        changed_BTD = self.feed_forward(self.feed_forward_norm(x_BTD))
        result: Tensor = x_BTD + self.feed_forward_dropout(changed_BTD, keys_BT)
        return result
