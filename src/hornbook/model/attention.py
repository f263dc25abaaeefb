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

from hornbook.model.cpu_attention import cpu_causal_attention, fits
from hornbook.model.dropout import Dropout
from hornbook.model.initialize import Draw
from hornbook.model.layers import Linear

Context = dict[str, Tensor]


class CausalSelfAttention(nn.Module):
    """Self-attention in which a token sees itself and what came before, in its own document if the context says so.

    Args:
        hidden_size: D.
        num_heads: H.
        head_size: K, independent of D / H.
        dropout: the dropout of the attention weights.
        std: standard deviation of the initial query, key and value weights.
        out_std: standard deviation of the initial output projection.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, head_size: int, *, dropout: Dropout, std: float, out_std: float
    ) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.std = num_heads, head_size, std
        self.qkv_weight = nn.Parameter(torch.empty(3, num_heads * head_size, hidden_size))
        self.qkv_bias = nn.Parameter(torch.empty(3 * num_heads * head_size))
        self.dropout = dropout
        self.out = Linear(num_heads * head_size, hidden_size, std=out_std)

    def draw(self, draw: Draw) -> None:
        """Fill the stacked parameters with their initial values."""
        draw.normal(self.qkv_weight, "qkv_weight", self.std)
        draw.constant(self.qkv_bias, 0.0)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Mix tokens; ``context`` may hold ``mask`` ``[B, 1, T, T]`` bool (True = may look) and ``keys`` ``[B, T]``."""
        q_BHTK, k_BHTK, v_BHTK = self._project(x_BTD)
        if self.training and self.dropout.probability > 0.0:
            y_BHTK = self._explicit(q_BHTK, k_BHTK, v_BHTK, context)
        elif "mask" in context:
            y_BHTK = functional.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=context["mask"])
        elif fits(q_BHTK):
            y_BHTK = cpu_causal_attention(q_BHTK, k_BHTK, v_BHTK)
        else:
            y_BHTK = functional.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        y_BTD: Tensor = self.out(y_BHTK.transpose(1, 2).flatten(2))
        return y_BTD

    def _project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight = self.qkv_weight.flatten(0, 1).to(x_BTD.dtype)
        packed = functional.linear(x_BTD, weight, self.qkv_bias.to(x_BTD.dtype))
        q, k, v = packed.view(*x_BTD.shape[:2], 3, self.num_heads, self.head_size).permute(2, 0, 3, 1, 4)
        return q, k, v

    def _explicit(self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, context: Context) -> Tensor:
        num_tokens = q_BHTK.shape[2]
        mask = context.get("mask", causal_mask(num_tokens, q_BHTK.device))
        scores_BHTT = (q_BHTK @ k_BHTK.transpose(2, 3)).float() / math.sqrt(self.head_size)
        weights_BHTT = scores_BHTT.masked_fill(~mask, -math.inf).softmax(-1).to(v_BHTK.dtype)
        # One key a (token, head): the hash adds the column, which here is the position that is looked at.
        heads_H = torch.arange(self.num_heads, device=q_BHTK.device) * 0x85EBCA6B
        keys_BHT = (context["keys"].unsqueeze(1) + heads_H.view(1, -1, 1)) & 0xFFFFFFFF
        y_BHTK: Tensor = self.dropout(weights_BHTT, keys_BHT) @ v_BHTK
        return y_BHTK


def causal_mask(num_tokens: int, device: torch.device) -> Tensor:
    """Return ``[1, 1, T, T]`` bool, True where the row's token may look at the column's."""
    return torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=device).tril().view(1, 1, num_tokens, num_tokens)


def document_mask(documents_BT: Tensor) -> Tensor:
    """Return ``[B, 1, T, T]`` bool: causal, and inside one document of ``documents_BT`` (int64) only."""
    same_BTT = documents_BT.unsqueeze(2) == documents_BT.unsqueeze(1)
    return same_BTT.unsqueeze(1) & causal_mask(documents_BT.shape[1], documents_BT.device)
