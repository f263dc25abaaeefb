"""Multi-head self-attention: one product for query, key and value, then fused attention.

::

    x_BTD --qkv [3, H·K, D]--> q, k, v [B, H, T, K] --softmax(q kᵀ / √K) v--> [B, T, H·K] --out--> [B, T, D]

Query, key and value are one stacked parameter ``[3, H·K, D]``: speed wants one product, while tensor parallelism, LAMB,
import and sparsity want the three apart, and ``qkv_weight[0]`` is the query (the bias is flat: it is one-dimensional,
so it is not decayed). Attention dropout takes an explicit path with all the weights ``[B, H, T, T]`` in memory, since
fused attention draws from a generator that nobody can replay.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.model.initialize import Draw
from hornbook.model.layers import Dropout, Linear
from hornbook.ops.attention import cpu_causal_attention, fits
from hornbook.ops.linear import cast

Context = dict[str, Tensor]


class SelfAttention(nn.Module):
    """What every self-attention has: the stacked projection, the output projection, the dropout of weights.

    Args:
        hidden_size: D.
        num_heads: H.
        head_size: K, independent of D / H.
        dropout: the dropout of the attention weights.
        std: standard deviation of the initial query, key and value weights.
        out_std: standard deviation of the initial output projection.
        qkv_bias: whether query, key and value have biases.
        out_bias: whether the output projection has one.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_size: int,
        *,
        dropout: Dropout,
        std: float,
        out_std: float,
        qkv_bias: bool = True,
        out_bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.std = num_heads, head_size, std
        self.qkv_weight = nn.Parameter(torch.empty(3, num_heads * head_size, hidden_size))
        self.qkv_bias = nn.Parameter(torch.empty(3 * num_heads * head_size)) if qkv_bias else None
        self.dropout = dropout
        self.out = Linear(num_heads * head_size, hidden_size, std=out_std, bias=out_bias)

    def draw(self, draw: Draw) -> None:
        """Fill the stacked parameters with their initial values."""
        draw.normal(self.qkv_weight, "qkv_weight", self.std)
        draw.constant(self.qkv_bias, 0.0)

    @property
    def drops(self) -> bool:
        """Whether attention weights are dropped now."""
        return self.training and self.dropout.probability > 0.0

    def project(self, x: Tensor) -> Tensor:
        """Return query, key and value side by side, ``[..., 3·H·K]``, of ``[..., D]``."""
        return functional.linear(x, self.qkv_weight.flatten(0, 1).to(x.dtype), cast(self.qkv_bias, x.dtype))

    def part(self, packed_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value, each ``[B, H, T, K]``, of what ``project`` made."""
        shape = (*packed_BTE.shape[:2], 3, self.num_heads, self.head_size)
        q, k, v = packed_BTE.view(shape).permute(2, 0, 3, 1, 4)
        return q, k, v

    def attend_dropping(self, qkv: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, keys_BT: Tensor) -> Tensor:
        """Return ``[B, H, T, K]`` with weights dropped by hash; the column is the place that is looked at.

        Args:
            qkv: ``[B, H, T, K]`` each.
            mask: bool, broadcast to ``[B, H, T, T]``, True where a token may look.
            keys_BT: int64, of the tokens that look.
        """
        q_BHTK, k_BHTK, v_BHTK = qkv
        scores_BHTT = (q_BHTK @ k_BHTK.transpose(2, 3)).float() / math.sqrt(self.head_size)
        if mask is not None:
            scores_BHTT = scores_BHTT.masked_fill(~mask, -math.inf)
        weights_BHTT = scores_BHTT.softmax(-1).to(v_BHTK.dtype)
        y_BHTK: Tensor = self.dropout(weights_BHTT, self.head_keys(keys_BT)) @ v_BHTK
        return y_BHTK

    def head_keys(self, keys_BT: Tensor) -> Tensor:
        """Return one key a (token, head), ``[B, H, T]``: the hash adds the column, here the place that is looked at."""
        heads_H = torch.arange(self.num_heads, device=keys_BT.device) * 0x85EBCA6B
        return (keys_BT.unsqueeze(1) + heads_H.view(1, -1, 1)) & 0xFFFFFFFF


class CausalSelfAttention(SelfAttention):
    """Self-attention in which a token sees itself and what came before, in its own document if the context says so."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Mix tokens; ``context`` may hold ``mask`` ``[B, 1, T, T]`` bool (True = may look) and ``keys`` ``[B, T]``."""
        q_BHTK, k_BHTK, v_BHTK = qkv = self.part(self.project(x_BTD))
        if self.drops:
            mask = context["mask"] if "mask" in context else causal_mask(x_BTD.shape[1], x_BTD.device)
            y_BHTK = self.attend_dropping(qkv, mask, context["keys"])
        elif "mask" in context:
            y_BHTK = functional.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=context["mask"])
        elif fits(q_BHTK):
            y_BHTK = cpu_causal_attention(q_BHTK, k_BHTK, v_BHTK)
        else:
            y_BHTK = functional.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        y_BTD: Tensor = self.out(y_BHTK.transpose(1, 2).flatten(2))
        return y_BTD


def causal_mask(num_tokens: int, device: torch.device) -> Tensor:
    """Return ``[1, 1, T, T]`` bool, True where the row's token may look at the column's."""
    return torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=device).tril().view(1, 1, num_tokens, num_tokens)


def document_mask(documents_BT: Tensor) -> Tensor:
    """Return ``[B, 1, T, T]`` bool: causal, and inside one document of ``documents_BT`` (int64) only."""
    same_BTT = documents_BT.unsqueeze(2) == documents_BT.unsqueeze(1)
    return same_BTT.unsqueeze(1) & causal_mask(documents_BT.shape[1], documents_BT.device)
