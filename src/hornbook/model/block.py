"""Transformer blocks: attention and a feed-forward, each with a norm, a dropout and a residual connection."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, cast

from torch import Tensor, nn

from hornbook.config import EncoderConfig, TransformerConfig
from hornbook.config.models import LayerNormConfig
from hornbook.model.attention import CausalSelfAttention, Context, EncoderSelfAttention, SelfAttention
from hornbook.model.incremental import is_incremental
from hornbook.model.layers import (
    Dropout,
    LayerNorm,
    Linear,
    MakeLinear,
    NoNorm,
    RMSNorm,
    StackedLinear,
    activated,
    add_norm,
    is_unmodified,
)
from hornbook.ops.layers import feed_forward, gated

_SITES_PER_BLOCK = 3
MakeNorm = Callable[[int], LayerNorm | RMSNorm]


_FIRST_ACTIVATION_SITE = 1 << 29


class FeedForward(nn.Module):
    """``y = W₂ f(W₁ x + b₁) + b₂`` (Vaswani et al. 2017, equation 2), with any activation ``f`` of ``ACTIVATIONS``.

    Gated, it is ``y = W₂ (f(W x + b) · (W₁ x + b₁)) + b₂`` (Shazeer 2020, equation 5). ``dropout`` applies to the input
    of W₂; ``forward`` then needs the dropout keys.
    """

    is_incremental = True

    def __init__(
        self,
        hidden_size: int,
        feed_forward_size: int,
        *,
        activation: str,
        std: float,
        out_std: float,
        make_linear: MakeLinear = Linear,
        dropout: Dropout | None = None,
        bias: bool = True,
        is_gated: bool = False,
    ) -> None:
        super().__init__()
        self.activation, self.dropout, self.is_gated = activation, dropout, is_gated
        if is_gated:
            self.gate_up = StackedLinear(hidden_size, feed_forward_size, 2, std=std, bias=bias)
        else:
            self.up = make_linear(hidden_size, feed_forward_size, std=std, bias=bias)
        self.down = make_linear(feed_forward_size, hidden_size, std=out_std, bias=bias)

    def forward(self, x_BTD: Tensor, keys_BT: Tensor | None = None) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``; ``keys_BT`` is int64, for the dropout."""
        up, down = self.gate_up if self.is_gated else self.up, self.down
        drops = self.dropout is not None and self.dropout.drops
        kind = StackedLinear if self.is_gated else Linear
        if not drops and is_unmodified(up, kind) and is_unmodified(down, Linear):  # native operators fuse both
            layers = (up.weight, up.bias), (down.weight, down.bias)
            return feed_forward(x_BTD, *layers, self.activation, is_gated=self.is_gated)
        h_BTF = gated(up(x_BTD), self.activation) if self.is_gated else activated(up, x_BTD, self.activation)
        if self.dropout is not None and drops:
            h_BTF = self.dropout(h_BTF, keys_BT)
        y_BTD: Tensor = down(h_BTF)
        return y_BTD


class _Block(nn.Module):
    """The base of blocks; arguments as for ``PreNormBlock``."""

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
        activation_dropout: float = 0.0,
        out_std: float | None = None,
        feed_forward: Callable[..., FeedForward] = FeedForward,
        norm_placement: Literal["before", "after", "both"] = "before",
    ) -> None:
        super().__init__()
        self.index = index
        if out_std is None:
            out_std = config.initializer_std / math.sqrt(2 * config.num_layers)
        if make_norm is None:
            make_norm = partial(LayerNorm, epsilon=cast(LayerNormConfig, config).layer_norm_epsilon)
        before, after = norm_placement != "after", norm_placement != "before"
        attention_site, first_site, second_site = (index * _SITES_PER_BLOCK + site for site in (1, 2, 3))
        self.attention_norm = make_norm(config.hidden_size) if before else NoNorm()
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
        self.attention_output_norm = make_norm(config.hidden_size) if after else NoNorm()
        self.attention_dropout = Dropout(config.residual_dropout, site=first_site)
        self.feed_forward_norm = make_norm(config.hidden_size) if before else NoNorm()
        self.feed_forward = feed_forward(
            config.hidden_size,
            config.effective_feed_forward_size,
            activation=config.activation,
            std=config.initializer_std,
            out_std=out_std,
            make_linear=make_linear,
            dropout=Dropout(activation_dropout, site=_FIRST_ACTIVATION_SITE + index) if activation_dropout else None,
        )
        self.feed_forward_output_norm = make_norm(config.hidden_size) if after else NoNorm()
        self.feed_forward_dropout = Dropout(config.residual_dropout, site=second_site)
        self._drops_activations = activation_dropout > 0.0


class PreNormBlock(_Block):
    """A pre-norm block: ``x + attention(norm(x))``, then ``x + feed_forward(norm(x))`` (Radford et al. 2019).

    ``norm_placement`` moves the norms to ``x + norm(attention(x))`` (OLMo 2), or adds these (Gemma 3).

    Args:
        config: sizes and options of the model.
        index: the block's index in the whole model, on every pipeline stage: dropout sites depend on it.
        make_linear: factory of the linear layers.
        make_norm: factory of the norms, called with the number of columns; None: layer norms.
        attention: factory of the attention, called like ``CausalSelfAttention``.
        qkv_bias: whether query, key and value have biases.
        out_bias: whether the attention's output projection has a bias.
        activation_dropout: share of the feed-forward's activations to drop.
        out_std: standard deviation of the initial output layers; None: smaller in deeper models, as in GPT-2.
        feed_forward: factory of the feed-forward, called like ``FeedForward``.
        norm_placement: whether norms map the inputs of attention and feed-forward, their outputs, or both.
    """

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        x_BTD, changed_BTD = self.branches(x_BTD, None, context)
        result: Tensor = self.feed_forward_dropout(changed_BTD, context["keys"], x_BTD)
        return result

    def branches(self, x_BTD: Tensor, normed_BTD: Tensor | None, context: Context) -> tuple[Tensor, Tensor]:
        """Return the hidden states behind the attention, and the result of the feed-forward, still to be added.

        ``normed_BTD`` is the norm of ``x_BTD``, if it is known.
        """
        keys_BT = context["keys"]
        if normed_BTD is None:
            x_BTD, normed_BTD = self.attention_norm.beside(x_BTD)
        changed_BTD = self.attention_output_norm(self.attention(normed_BTD, context))
        x_BTD, normed_BTD = add_norm(self.attention_dropout, self.feed_forward_norm, changed_BTD, keys_BT, x_BTD)
        keys = (keys_BT,) if self._drops_activations else ()
        return x_BTD, self.feed_forward_output_norm(self.feed_forward(normed_BTD, *keys))

    @property
    def is_incremental(self) -> bool:
        """Whether new tokens and the cache suffice to compute both parts."""
        return is_incremental(self.attention) and is_incremental(self.feed_forward)


class PostNormBlock(_Block):
    """A post-norm block: ``norm(x + attention(x))``, then ``norm(x + feed_forward(x))`` (Devlin et al. 2019).

    Args:
        config: sizes and options of the model.
        index: the block's index in the whole model, on every pipeline stage: dropout sites depend on it.
    """

    def __init__(self, config: EncoderConfig, index: int) -> None:
        super().__init__(
            config,
            index,
            attention=EncoderSelfAttention,
            out_std=config.initializer_std,
            qkv_bias=config.qkv_bias,
            out_bias=config.projection_bias,
        )

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        keys_BT = context["keys"]
        attended_BTD = self.attention(x_BTD, context)
        _, x_BTD = add_norm(self.attention_dropout, self.attention_norm, attended_BTD, keys_BT, x_BTD)
        _, x_BTD = add_norm(self.feed_forward_dropout, self.feed_forward_norm, self.feed_forward(x_BTD), keys_BT, x_BTD)
        return x_BTD
