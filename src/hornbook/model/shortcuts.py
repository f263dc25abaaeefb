"""Shortcuts of nanochat (Karpathy 2025) around attention and feed-forward, as parts of a decoder's blocks.

::

    smear      first block       x_t + s · σ(g · x_t[:24]) x_(t-1)        the previous token's embedding
    scales     each block        a x + b x₀                               x₀: the embedding's result
    values     some attentions   v + 3 σ(G x[:12]) e[token]               a gate for each head

All factors are learned; the model starts with s = 0 and G = 0, which is no smear and half-open gates of the values.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.config import DecoderConfig
from hornbook.model.attention import Context
from hornbook.model.block import PreNormBlock
from hornbook.model.initialize import Draw


class ValueEmbedding(nn.Module):
    """Gated embeddings of the tokens, to be added to an attention's values.

    Args:
        config: options of the model.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.vocab_size is not None, "the run fills in the vocabulary before it builds the model"
        num_heads = config.effective_kv_heads
        self.std = config.hidden_size**-0.5
        self.table = nn.Parameter(torch.empty(config.vocab_size, num_heads * config.effective_head_size))
        self.gate = nn.Parameter(torch.empty(num_heads, config.gate_columns))

    def draw(self, draw: Draw) -> None:
        """Initialize the parameters."""
        draw.normal(self.table, "table", self.std)
        draw.constant(self.gate, 0.0)

    def forward(self, x_BTD: Tensor, tokens_BT: Tensor) -> Tensor:
        """Return what is added to the values, ``[B, T, G·K]``, for hidden states ``[B, T, D]`` and int64 tokens."""
        num_heads, num_columns = self.gate.shape
        gate_BTG = 3.0 * torch.sigmoid(functional.linear(x_BTD[..., :num_columns], self.gate.to(x_BTD.dtype)))
        rows_BTC = functional.embedding(tokens_BT, self.table.float()).to(x_BTD.dtype)
        rows_BTGK = rows_BTC.view(*tokens_BT.shape, num_heads, -1)
        return (gate_BTG.unsqueeze(-1) * rows_BTGK).flatten(-2)


class Smear(nn.Module):
    """A gated share of the previous token's embedding; the first token of a text, or of a document, has none.

    Args:
        num_columns: columns on which the gate depends.
    """

    is_incremental = True

    def __init__(self, num_columns: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(num_columns))
        self.scale = nn.Parameter(torch.empty(1))

    def draw(self, draw: Draw) -> None:
        """Initialize the parameters: no smear."""
        draw.normal(self.gate, "gate", 0.02)
        draw.constant(self.scale, 0.0)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``; in generation, the cache has the earlier embeddings."""
        logits_BT = x_BTD[..., : len(self.gate)].float() @ self.gate.float()
        has_previous_BT = context["positions"] > 0
        if "mask" in context:
            attends_BT = context["mask"].diagonal(-1, 2, 3)[:, 0]
            has_previous_BT = has_previous_BT & functional.pad(attends_BT, (1, 0))
        share_BT = self.scale.float() * torch.sigmoid(logits_BT) * has_previous_BT
        return x_BTD + share_BT.unsqueeze(-1).to(x_BTD.dtype) * self._previous(x_BTD, context)

    def _previous(self, x_BTD: Tensor, context: Context) -> Tensor:
        cache, num_new = context.get("cache"), x_BTD.shape[1]
        if cache is not None:
            stored_BSD = cache.of(self, 1, x_BTD.shape[2])[:, 0, 0]
            stored_BSD[:, -num_new:] = x_BTD
            if stored_BSD.shape[1] > num_new:
                return stored_BSD[:, -num_new - 1 : -1].to(x_BTD.dtype)
        return functional.pad(x_BTD[:, :-1], (0, 0, 1, 0))


class ShortcutBlock(PreNormBlock):
    """A pre-norm block of learned multiples of the hidden states and of the embedding, the first one after a smear.

    Args:
        config: sizes and options of the model.
        index: see ``PreNormBlock``.
        options: see ``PreNormBlock``.
    """

    def __init__(self, config: DecoderConfig, index: int, **options: object) -> None:
        super().__init__(config, index, **options)  # type: ignore[arg-type]
        self.depth = index / max(config.num_layers - 1, 1)
        self.state_scale, self.embedding_scale = (
            nn.Parameter(torch.empty(1)) if config.residual_scales else None for _ in range(2)
        )
        self.smear = Smear(config.smear_columns) if config.smear and index == 0 else None

    def draw(self, draw: Draw) -> None:
        """Initialize the scales; those of the embedding, and the growth of hidden states, decrease with depth."""
        draw.constant(self.state_scale, 1.15 - 0.10 * self.depth)
        draw.constant(self.embedding_scale, 0.20 - 0.15 * self.depth)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        if self.smear is not None:
            x_BTD = self.smear(x_BTD, context)
        if self.state_scale is not None and self.embedding_scale is not None:
            own, first = (scale.to(x_BTD.dtype) for scale in (self.state_scale, self.embedding_scale))
            x_BTD = own * x_BTD + first * context["embedding"]
        return super().forward(x_BTD, context)

    @property
    def is_incremental(self) -> bool:
        """Whether new tokens and the cache suffice to compute all parts."""
        return super().is_incremental
