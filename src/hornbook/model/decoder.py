"""The decoder of ``family = "decoder"``: GPT's block with other norms, positions, attention and feed-forward.

Shortcuts of nanochat (Karpathy 2025) around attention and feed-forward are parts of its blocks::

    smear      first block       x_t + s · σ(g · x_t[:24]) x_(t-1)        the previous token's embedding
    scales     each block        a x + b x₀                               x₀: the embedding's result
    values     some attentions   v + 3 σ(G x[:12]) e[token]               a gate for each head

All factors are learned; the model starts with s = 0 and G = 0, which is no smear and half-open gates of the values.
Keys may have columns of the previous token, as in the speedrun of modded-nanogpt (Jordan et al. 2024), see `KeyShift`.
"""

import math
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.config import DecoderConfig
from hornbook.model.attention import CausalSelfAttention, Context, KeyValues, SelfAttention, attend
from hornbook.model.block import FeedForward, PreNormBlock
from hornbook.model.head import CausalHead
from hornbook.model.initialize import Draw
from hornbook.model.language_model import LanguageModel
from hornbook.model.layers import Embedding, LayerNorm, RMSNorm, is_unmodified
from hornbook.model.rotary import local_rotary_of, rotary_of
from hornbook.ops.attention import rotate
from hornbook.ops.native.kernels import Form


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
        share_BT = self.scale.float() * torch.sigmoid(logits_BT) * has_previous(context)
        cache = context.get("cache")
        stored_BSD = None if cache is None else cache.of(self, 1, x_BTD.shape[2])[:, 0, 0]
        return x_BTD + share_BT.unsqueeze(-1).to(x_BTD.dtype) * previous_rows(x_BTD, stored_BSD)


class KeyShift(nn.Module):
    """Keys whose columns with the longest wavelengths, the second and last quarter of a head, are the previous token's.

    A query then finds the tokens that followed its own token, so that one layer continues a text that it has seen,
    for which keys of their own tokens take two (induction heads, Olsson et al. 2022). The first token of a text, or of
    a document, has zeros there.

    Args:
        head_size: K.
    """

    is_incremental = True

    def __init__(self, head_size: int) -> None:
        super().__init__()
        self.quarter = head_size // 4

    def forward(self, k_BTC: Tensor, context: Context) -> Tensor:
        """Return keys ``[B, T, G·K]`` with those columns of the previous token; in generation, the cache has them."""
        first, second, third, last = torch.unflatten(k_BTC, -1, (-1, 4, self.quarter)).unbind(-2)
        own_BTG2C, cache = torch.stack((second, last), 3), context.get("cache")
        if cache is None:
            before_BTG2C = previous_rows(own_BTG2C)
        else:
            before_BTG2C = previous_rows(own_BTG2C, self.stored(cache, first.shape[2]).permute(0, 3, 2, 1, 4))
        if cache is not None or "documents" in context:
            before_BTG2C = before_BTG2C * has_previous(context)[..., None, None, None]
        before_second, before_last = before_BTG2C.unbind(3)
        return torch.stack((first, before_second, third, before_last), 3).flatten(2)

    def stored(self, cache: KeyValues, num_heads: int) -> Tensor:
        """Return those columns of all tokens, before they move, in a cache, ``[B, 2, G, S, K/4]``."""
        return cache.of(self, num_heads, self.quarter)


def has_previous(context: Context) -> Tensor:
    """Return which tokens are not the first of a text or of a document, bool ``[B, T]``."""
    has_previous_BT = context["positions"] > 0
    if "documents" in context:
        is_begun_BT = context["documents"].diff(dim=1) == 0
        has_previous_BT = has_previous_BT & functional.pad(is_begun_BT, (1, 0))
    return has_previous_BT


def previous_rows(x: Tensor, stored: Tensor | None = None) -> Tensor:
    """Return the rows before those of ``x``, ``[B, T, ...]``, zeros before the first one.

    Args:
        x: rows of new tokens.
        stored: those of all tokens, ``[B, S, ...]``, of which this writes the last T.
    """
    num_new = x.shape[1]
    if stored is not None:
        stored[:, -num_new:] = x
        if stored.shape[1] > num_new:
            return stored[:, -num_new - 1 : -1].to(x.dtype)
    return torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1)


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


class DecoderAttention(SelfAttention):
    """Causal self-attention with norms and rotations of queries and keys, grouped keys and values, and a window.

    ::

        x_BTD --query--> [B, T, H·K] --norm, rotation--> q [B, H, T, K]
              --key_value [2, G·K, D]--> k, v [B, T, G·K] --norm, rotation of k--> [B, G, T, K]

    Args:
        sizes: see ``SelfAttention``.
        config: options of the model.
        index: of the layer.
        options: see ``SelfAttention``.
    """

    is_incremental = True

    def __init__(self, *sizes: int, config: DecoderConfig, index: int, **options: Any) -> None:
        super().__init__(*sizes, num_kv_heads=config.num_kv_heads, **options)
        self.window = config.window_of(index)
        self.cap, self.norm_kind = config.attention_cap, config.query_key_norm
        self.value_embedding = ValueEmbedding(config) if config.has_value_embedding(index) else None
        self.key_shift = KeyShift(self.head_size) if config.shifted_keys else None
        self.rotation: Literal["rotation", "local_rotation"] = "rotation"
        if self.window is not None and config.local_rope_theta:
            self.rotation = "local_rotation"
        self.scale = 1.0 if config.attention_scale is None else config.attention_scale * math.sqrt(self.head_size)
        if self.norm_kind != "none":
            num_heads = (self.num_heads, self.num_kv_heads) if self.norm_kind == "width" else (1, 1)
            make_norm = partial(RMSNorm, epsilon=config.norm_epsilon, has_gain=config.norm_gain)
            self.query_norm, self.key_norm = (make_norm(number * self.head_size) for number in num_heads)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Return the output ``[B, T, D]`` for hidden states ``[B, T, D]``."""
        packed: tuple[Tensor, ...]
        if self.num_kv_heads == self.num_heads:
            packed = (self.qkv(x_BTD),)
        else:
            packed = (self.query(x_BTD), self.key_value(x_BTD))
        if self.value_embedding is not None or self.key_shift is not None:
            q_BTC, k_BTC, v_BTC = _parts(packed)
            if self.key_shift is not None:
                k_BTC = self.key_shift(k_BTC, context)
            if self.value_embedding is not None:
                v_BTC = v_BTC + self.value_embedding(x_BTD, context["tokens"])
            packed = (q_BTC, k_BTC, v_BTC)
        y_BTD: Tensor = self.out(self.mix(packed[0], context, *packed[1:]))
        return y_BTD

    def mix(self, packed_BTE: Tensor, context: Context, *others_BTE: Tensor) -> Tensor:
        """Return the attention ``[B, T, H·K]``.

        Args:
            packed_BTE: query, key and value side by side, or only the query.
            context: of the block.
            others_BTE: key and value, side by side or each on its own, if they are not in ``packed_BTE``.
        """
        if (form := self.native_form(packed_BTE, context)) is not None:
            return self._mix_natively(form, (packed_BTE, *others_BTE), context)
        q_BTC, k_BTC, v_BTC = _parts((packed_BTE, *others_BTE))
        q_BHTK, k_BGTK = self._turned(q_BTC, "query_norm", context), self._turned(k_BTC, "key_norm", context)
        is_limited = self.cap is not None or (self.window is not None and self.window < packed_BTE.shape[1])
        if (is_limited or self.dropout.drops or "documents" in context) and self.attends_by_spans(context):
            q_NHK, k_NGK, v_NGK = (
                x.flatten(0, 1) for x in (q_BHTK.transpose(1, 2), k_BGTK.transpose(1, 2), self._heads(v_BTC))
            )
            limits: dict[str, Any] = {"scale": self.scale, "window": self.window, "cap": self.cap}
            return self.attend_spans(context, q_NHK, k_NGK, v_NGK, is_causal=True, **limits)
        if self.scale != 1.0:
            q_BHTK = q_BHTK * self.scale
        v_BGTK = self._heads(v_BTC).transpose(1, 2)
        dropout = self.weight_dropout(context["keys"]) if self.dropout.drops else None
        heads = (q_BHTK, k_BGTK, v_BGTK)
        y_BHTK = attend(self, *heads, context, dropout=dropout, window=self.window, cap=self.cap)
        return y_BHTK.transpose(1, 2).flatten(2)

    def native_form(self, packed_BTE: Tensor, context: Context) -> Form | None:
        """Return the form of native attention, which normalizes each head itself; None if PyTorch computes."""
        if self.norm_kind == "head" and not all(
            is_unmodified(norm, RMSNorm) for norm in (self.query_norm, self.key_norm)
        ):
            return None
        return super().native_form(packed_BTE, context)

    def _mix_natively(self, form: Form, packed: tuple[Tensor, ...], context: Context) -> Tensor:
        heads: dict[str, Any] = {
            "window": self.window,
            "cap": self.cap,
            "scale": self.scale / math.sqrt(self.head_size),
        }
        if self.norm_kind == "width":
            q_BTC, k_BTC, v_BTC = _parts(packed)
            packed = (self.query_norm(q_BTC), self.key_norm(k_BTC), v_BTC)
        if self.norm_kind == "head":
            heads["q_gain_K"], heads["k_gain_K"] = self.query_norm.weight, self.key_norm.weight
            heads["norm_epsilon"] = self.query_norm.epsilon
        if self.rotation in context:
            heads["cosines_NR"], heads["sines_NR"] = (angles.flatten(0, 1) for angles in context[self.rotation])
        *parts_NC, last_NC = (part.flatten(0, 1) for part in packed)
        shape = (-1, self.head_size) if len(packed) == 3 else (4 - len(packed), -1, self.head_size)
        split = [*map(self._heads, parts_NC), torch.unflatten(last_NC, 1, shape)]
        return self.attend_natively(form, context, *split, is_causal=True, **heads)

    def _heads(self, x_BTC: Tensor) -> Tensor:
        return x_BTC.view(*x_BTC.shape[:-1], -1, self.head_size)

    def _turned(self, x_BTC: Tensor, norm: str, context: Context) -> Tensor:
        """Return queries or keys ``[B, heads, T, K]`` after their norm and rotation, if they have these."""
        if self.norm_kind == "width":
            x_BTC = getattr(self, norm)(x_BTC)
        x_BTHK = self._heads(x_BTC)
        if self.norm_kind == "head":
            x_BTHK = getattr(self, norm)(x_BTHK)
        if self.rotation in context:
            x_BTHK = rotate(x_BTHK, *context[self.rotation])
        return x_BTHK.transpose(1, 2)


def _parts(packed: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return query, key and value, of which some or all are side by side."""
    return (*packed[:-1], *packed[-1].chunk(4 - len(packed), -1))


def build_decoder(config: DecoderConfig, compute_dtype: torch.dtype) -> LanguageModel:
    """Return the decoder with uninitialized parameters."""
    assert config.vocab_size is not None, "the run fills in the vocabulary before it builds the model"
    make_norm = partial(_norm, config)
    embedding = Embedding(
        config.vocab_size,
        config.max_positions,
        config.hidden_size,
        positions="learned" if config.positions == "learned" else "none",
        norm=make_norm(config.hidden_size) if config.embedding_norm else None,
        scale=config.effective_embedding_scale,
        dropout=config.embedding_dropout,
        std=config.initializer_std,
        compute_dtype=compute_dtype,
    )
    (described,) = config.description().block.attentions
    block = ShortcutBlock if config.residual_scales or config.smear else PreNormBlock
    blocks = [
        block(
            config,
            index,
            make_norm=make_norm,
            attention=CausalSelfAttention
            if described.is_plain
            else partial(DecoderAttention, config=config, index=index),
            qkv_bias=config.qkv_bias,
            out_bias=config.linear_bias,
            out_std=0.0 if config.zero_init_outputs else None,
            feed_forward=partial(FeedForward, bias=config.linear_bias, is_gated=config.feed_forward == "gated"),
            norm_placement=config.norm_placement,
        )
        for index in range(config.num_layers)
    ]
    head = CausalHead(
        config.hidden_size,
        config.vocab_size,
        norm=make_norm(config.hidden_size),
        is_tied=config.tied,
        std=config.initializer_std,
        cap=config.logit_cap,
    )
    model = LanguageModel(embedding, blocks, head, max_positions=config.max_positions)
    model.passes_embedding = config.residual_scales
    if (rotary := rotary_of(config)) is not None:
        model.rotations["rotation"] = rotary
    if (rotary := local_rotary_of(config)) is not None:
        model.rotations["local_rotation"] = rotary
    return model


def _norm(config: DecoderConfig, size: int) -> LayerNorm | RMSNorm:
    if config.norm == "layer":
        return LayerNorm(size, epsilon=config.norm_epsilon)
    return RMSNorm(size, epsilon=config.norm_epsilon, has_gain=config.norm_gain)
