"""Softmax attention: causal, bidirectional, and of new tokens to a cache of keys and values.

`causal_attention` and `attention` choose the fastest applicable form: PyTorch's fused attention, the blocked form for
CPUs below, or, with dropout, an explicit form with all attention weights ``[B, H, T, T]`` in memory, since the dropout
of fused attention is not reproducible.

On a CPU, PyTorch's fused attention runs bf16 products well below the rate of the linear layers, and recomputes the
attention weights in the backward pass. In the blocked form, each block of 128 queries multiplies only the keys that it
attends to, the softmax is in fp32 (four times as fast as in bf16), and the weights are kept for the backward pass::

    causal                                        bidirectional
    queries  0..127   x  keys 0..127   # . .      # # #
    queries 128..255  x  keys 0..255   # # .      # # #
    queries 256..383  x  keys 0..383   # # #      # # #

It processes as many heads at once as have scores that fit in the cache. Dropped weights are stored with a minus sign,
so that dropout needs no memory and one hash. In bf16 on one thread of an EPYC 9004, forward and backward, compared with
``scaled_dot_product_attention``, bidirectional with heads of 64: 32 × 128 tokens are 2.4 times as fast with 4 heads,
3.4 times with 8; 8 × 512 tokens 1.7 and 1.5 times. In fp32 it is not faster. It keeps B·H·T² weights per layer, half of
that if causal, so `is_blocked` excludes long sequences.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.config.shapes import QUERIES, attention_blocks, is_blocked
from hornbook.ops.dropout import dropout as drop
from hornbook.ops.dropout import keep_mask
from hornbook.ops.native.kernels import FORMS


class WeightDropout(NamedTuple):
    """The dropout of attention weights (`hornbook.ops.dropout`); the column is the position of the key."""

    keys: Tensor
    """``[B, H, T]`` int64, one per head and query."""
    site: int
    probability: float


class Limits(NamedTuple):
    """What restricts the attention of a layer."""

    window: int | None = None
    """How many tokens each one attends to, with itself; None: all earlier ones (Beltagy et al. 2020, section 3.1)."""
    cap: float | None = None
    """Soft limit of the scores, ``cap · tanh(score / cap)`` (Gemma 2, 2024, section 2); None: none."""


_UNLIMITED = Limits()


def head_keys(keys_BT: Tensor, num_heads: int, first_head: int = 0) -> Tensor:
    """Return a dropout key for each head and token, ``[B, H, T]``.

    Args:
        keys_BT: int64 in [0, 2³²), one per token.
        num_heads: H.
        first_head: index in the model of the first of these heads, if a rank holds some of them.
    """
    heads_H = torch.arange(first_head, first_head + num_heads, device=keys_BT.device) * 0x85EBCA6B
    return (keys_BT.unsqueeze(1) + heads_H.view(1, -1, 1)) & 0xFFFFFFFF


def causal_attention(
    q_BHTK: Tensor,
    k_BHTK: Tensor,
    v_BHTK: Tensor,
    *,
    mask: Tensor | None = None,
    dropout: WeightDropout | None = None,
    limits: Limits = _UNLIMITED,
) -> Tensor:
    """Return the causal attention ``drop(softmax(mask(q kᵀ / √K))) v``, ``[B, H, T, K]``.

    Args:
        q_BHTK: queries.
        k_BHTK: keys of the same shape and dtype, or with G heads, a divisor of H, each for H / G consecutive query
            heads (grouped-query attention, Ainslie et al. 2023).
        v_BHTK: values, of the shape of the keys.
        mask: bool, broadcast to ``[B, H, T, T]``, True where a query may attend to a key; must include causality. None
            for ``causal_mask``.
        dropout: of the attention weights, if any.
        limits: window and cap.
    """
    k_BHTK, v_BHTK = _for_all_heads(k_BHTK, q_BHTK), _for_all_heads(v_BHTK, q_BHTK)
    num_heads, num_tokens = q_BHTK.shape[0] * q_BHTK.shape[1], q_BHTK.shape[2]
    if limits.window is not None and limits.window < num_tokens:
        seen = causal_mask(num_tokens, q_BHTK.device) if mask is None else mask
        mask = seen & _recent(num_tokens, num_tokens, limits.window, q_BHTK.device)
    if dropout is not None or limits.cap is not None:
        seen = causal_mask(num_tokens, q_BHTK.device) if mask is None else mask
        return _explicit_attention(q_BHTK, k_BHTK, v_BHTK, seen, dropout, limits.cap)
    if mask is None and is_blocked(q_BHTK.device.type, num_heads, num_tokens, is_causal=True):
        return blocked_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
    return functional.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=mask, is_causal=mask is None)


def attention(
    q_BHTK: Tensor,
    k_BHTK: Tensor,
    v_BHTK: Tensor,
    *,
    is_token_BT: Tensor | None = None,
    dropout: WeightDropout | None = None,
    reach: int | None = None,
) -> Tensor:
    """Return the bidirectional attention ``drop(softmax(q kᵀ / √K)) v``, ``[B, H, T, K]``, within each row.

    Args:
        q_BHTK: queries; keys and values have the same shape and dtype.
        k_BHTK: keys.
        v_BHTK: values.
        is_token_BT: bool, False for padding, which is masked; at least one True per row. None: no padding.
        dropout: of the attention weights, if any.
        reach: how many tokens on either side each one attends to, with itself; None: all.
    """
    num_heads, num_tokens = q_BHTK.shape[0] * q_BHTK.shape[1], q_BHTK.shape[2]
    if reach is not None and reach < num_tokens - 1:
        positions = torch.arange(num_tokens, device=q_BHTK.device)
        distances = (positions.unsqueeze(1) - positions).abs()
        near = (distances <= reach).view(1, 1, num_tokens, num_tokens)
        # padding attends to itself, lest a row be empty
        mask = near if is_token_BT is None else near & is_token_BT[:, None, None] | (distances == 0)
        if dropout is not None:
            return _explicit_attention(q_BHTK, k_BHTK, v_BHTK, mask, dropout)
        return functional.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=mask)
    fits = is_blocked(q_BHTK.device.type, num_heads, num_tokens, is_causal=False)
    if fits and (dropout is not None or q_BHTK.dtype != torch.float32):
        return blocked_attention(q_BHTK, k_BHTK, v_BHTK, is_token_BT=is_token_BT, dropout=dropout)
    is_token_B11T = None if is_token_BT is None else is_token_BT[:, None, None]
    if dropout is not None:
        return _explicit_attention(q_BHTK, k_BHTK, v_BHTK, is_token_B11T, dropout)
    return functional.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=is_token_B11T)


def cached_attention(
    q_BHTK: Tensor,
    k_BGTK: Tensor,
    v_BGTK: Tensor,
    cache_B2GSK: Tensor,
    mask: Tensor | None,
    limits: Limits = _UNLIMITED,
) -> Tensor:
    """Write the keys and values of new tokens into the last T columns of a cache, then attend to all S columns.

    Args:
        q_BHTK: queries of the T new tokens.
        k_BGTK: their keys; G is H, or a divisor of it, see ``causal_attention``.
        v_BGTK: their values.
        cache_B2GSK: keys and values; fp32 or the dtype of the tokens.
        mask: ``[B, 1, T, S]``, bool (True: may attend) or added to the scores. None if all tokens are new (T = S), for
            causal attention, or only one (T = 1), which attends to all columns.
        limits: window and cap.

    Returns:
        ``[B, H, T, K]`` in the dtype of the tokens.
    """
    num_new, num_columns = q_BHTK.shape[2], cache_B2GSK.shape[3]
    keys_BGSK, values_BGSK = cache_B2GSK.unbind(1)
    for columns, new in ((keys_BGSK, k_BGTK), (values_BGSK, v_BGTK)):
        columns.narrow(2, num_columns - num_new, num_new).copy_(new)
    if num_new == num_columns:
        return causal_attention(q_BHTK, k_BGTK, v_BGTK, mask=mask, limits=limits)
    if limits.window is not None and limits.window < num_columns:
        first = max(num_columns - num_new - limits.window + 1, 0)
        keys_BGSK, values_BGSK = keys_BGSK[:, :, first:], values_BGSK[:, :, first:]
        mask = None if mask is None else mask[..., first:]
        if num_new > 1 and mask is not None:
            recent = _recent(num_new, num_columns - first, limits.window, q_BHTK.device)
            mask = mask & recent if mask.dtype == torch.bool else mask.masked_fill(~recent, -math.inf)
    if limits.cap is not None:
        keys_BHSK, values_BHSK = _for_all_heads(keys_BGSK, q_BHTK), _for_all_heads(values_BGSK, q_BHTK)
        y_BHTK = _explicit_attention(q_BHTK.to(keys_BHSK.dtype), keys_BHSK, values_BHSK, mask, None, limits.cap)
        return y_BHTK.to(q_BHTK.dtype)
    y_BHTK = functional.scaled_dot_product_attention(
        q_BHTK.to(keys_BGSK.dtype),
        keys_BGSK,
        values_BGSK,
        attn_mask=mask,
        enable_gqa=q_BHTK.shape[1] != keys_BGSK.shape[1],
    )
    return y_BHTK.to(q_BHTK.dtype)


def document_context(documents_BT: Tensor) -> dict[str, Tensor]:
    """Return the context entries of windows whose documents do not attend to each other, given their numbers.

    These are ``mask`` and, for native attention, ``firsts`` and ``lengths`` of contiguous documents.
    """
    context = {"mask": document_mask(documents_BT)}
    if FORMS and not documents_BT.is_cuda and (found := documents_of_windows(documents_BT)) is not None:
        context["firsts"], context["lengths"] = found
    return context


def causal_mask(num_tokens: int, device: torch.device) -> Tensor:
    """Return ``[1, 1, T, T]`` bool, True where the row's token may attend to the column's."""
    return torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=device).tril().view(1, 1, num_tokens, num_tokens)


def document_mask(documents_BT: Tensor) -> Tensor:
    """Return ``[B, 1, T, T]`` bool: causal, and only within documents, given their numbers ``documents_BT`` (int64)."""
    same_BTT = documents_BT.unsqueeze(2) == documents_BT.unsqueeze(1)
    return same_BTT.unsqueeze(1) & causal_mask(documents_BT.shape[1], documents_BT.device)


def documents_of_windows(documents_BT: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the flat index of the first token and the number of tokens of each document in each window.

    Args:
        documents_BT: int64, the document of each token.

    Returns:
        int64 ``[S]`` each, or None if a document may recur in a window after another one.
    """
    steps_BT = documents_BT.diff(dim=1)
    if bool((steps_BT < 0).any()):
        return None
    begins_BT = functional.pad(steps_BT != 0, (1, 0), value=True)
    firsts_S = begins_BT.flatten().nonzero().squeeze(1)
    return firsts_S, firsts_S.diff(append=firsts_S.new_tensor([documents_BT.numel()]))


def _for_all_heads(kv_BGSK: Tensor, q_BHTK: Tensor) -> Tensor:
    """Return keys or values with a copy for each query head."""
    per_key = q_BHTK.shape[1] // kv_BGSK.shape[1]
    return kv_BGSK if per_key == 1 else kv_BGSK.repeat_interleave(per_key, 1)


def _recent(num_queries: int, num_keys: int, window: int, device: torch.device) -> Tensor:
    """Return ``[1, 1, queries, keys]`` bool, True for keys that are not before the window of the last queries."""
    band = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return band.triu(num_keys - num_queries - window + 1).view(1, 1, num_queries, num_keys)


def _explicit_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: WeightDropout | None, cap: float | None = None
) -> Tensor:
    scores_BHTT = (q @ k.transpose(2, 3)).float() / math.sqrt(q.shape[3])
    if cap is not None:
        scores_BHTT = cap * torch.tanh(scores_BHTT / cap)
    if mask is not None and mask.dtype == torch.bool:
        scores_BHTT = scores_BHTT.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores_BHTT = scores_BHTT + mask
    weights_BHTT = scores_BHTT.softmax(-1).to(v.dtype)
    if dropout is not None:
        weights_BHTT = drop(weights_BHTT, dropout.keys, dropout.site, dropout.probability)
    y_BHTK: Tensor = weights_BHTT @ v
    return y_BHTK


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_ZTK: Tensor,
        k_ZTK: Tensor,
        v_ZTK: Tensor,
        is_causal: bool,
        hidden_ZT: Tensor | None,
        dropout: WeightDropout | None,
        block_size: int,
    ) -> Tensor:
        y_ZTK = torch.empty_like(q_ZTK)
        saved = []
        for heads, queries, keys in attention_blocks(*q_ZTK.shape[:2], is_causal=is_causal, size=block_size):
            scores = (q_ZTK[heads, queries] @ k_ZTK[heads, keys].transpose(1, 2)).float().mul_(q_ZTK.shape[2] ** -0.5)
            if is_causal:  # the block's queries are at the last positions of its keys
                num_queries = scores.shape[1]
                later = torch.ones(num_queries, num_queries, dtype=torch.bool, device=scores.device).triu_(1)
                scores[:, :, -num_queries:].masked_fill_(later, -math.inf)
            if hidden_ZT is not None:
                scores.masked_fill_(hidden_ZT[heads].unsqueeze(1), -math.inf)
            kept = weights = torch.softmax(scores, -1).to(q_ZTK.dtype)
            if dropout is not None:
                keys_ZQ, columns = dropout.keys.flatten(0, 1)[heads, queries], weights.shape[2]
                kept = keep_mask(keys_ZQ, dropout.site, columns, dropout.probability)
                weights = torch.where(kept, weights, -weights)  # a minus sign marks dropped weights
                kept = _kept(weights, dropout)
            y_ZTK[heads, queries] = kept @ v_ZTK[heads, keys]
            saved.append(weights)
        ctx.save_for_backward(q_ZTK, k_ZTK, v_ZTK, *saved)
        ctx.is_causal, ctx.dropout, ctx.block_size = is_causal, dropout, block_size
        return y_ZTK

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_ZTK,) = gradients
        q_ZTK, k_ZTK, v_ZTK, *saved = ctx.saved_tensors
        dq_ZTK = torch.empty_like(q_ZTK)
        dk_ZTK, dv_ZTK = torch.zeros_like(k_ZTK, dtype=torch.float32), torch.zeros_like(v_ZTK, dtype=torch.float32)
        blocks = attention_blocks(*q_ZTK.shape[:2], is_causal=ctx.is_causal, size=ctx.block_size)
        for (heads, queries, keys), weights in zip(blocks, saved, strict=True):
            gradient = gradient_ZTK[heads, queries]
            kept = weights if ctx.dropout is None else _kept(weights, ctx.dropout)
            dv_ZTK[heads, keys] += kept.transpose(1, 2) @ gradient
            of_weights = (gradient @ v_ZTK[heads, keys].transpose(1, 2)).float()
            if ctx.dropout is not None:
                of_weights.mul_(1.0 / (1.0 - ctx.dropout.probability)).masked_fill_(weights.signbit(), 0.0)
                weights = weights.abs()
            # w · (g − Σ g·w) over the keys, in fp32
            of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights.float(), -1, torch.float32)
            scores_gradient = of_scores.mul_(q_ZTK.shape[2] ** -0.5).to(q_ZTK.dtype)
            dq_ZTK[heads, queries] = scores_gradient @ k_ZTK[heads, keys]
            dk_ZTK[heads, keys] += scores_gradient.transpose(1, 2) @ q_ZTK[heads, queries]
        return dq_ZTK, dk_ZTK.to(k_ZTK.dtype), dv_ZTK.to(v_ZTK.dtype), None, None, None, None


def blocked_attention(
    q_BHTK: Tensor,
    k_BHTK: Tensor,
    v_BHTK: Tensor,
    *,
    is_causal: bool = False,
    is_token_BT: Tensor | None = None,
    dropout: WeightDropout | None = None,
    block_size: int = QUERIES,
) -> Tensor:
    """Return ``drop(softmax(mask(q kᵀ / √K))) v``, ``[B, H, T, K]`` in the dtype of ``q``, computed block by block.

    Arguments as for ``attention``; if ``is_causal``, the attention is causal, and each block of ``block_size`` queries
    multiplies only the keys up to its end.
    """
    flat = (tensor.flatten(0, 1) for tensor in (q_BHTK, k_BHTK, v_BHTK))
    hidden_ZT = None if is_token_BT is None else (~is_token_BT).repeat_interleave(q_BHTK.shape[1], 0)
    y_ZTK: Tensor = _Attention.apply(*flat, is_causal, hidden_ZT, dropout, block_size)  # type: ignore[no-untyped-call]
    return y_ZTK.view_as(q_BHTK)


def _kept(weights: Tensor, dropout: WeightDropout) -> Tensor:
    """Return the weights after dropout."""
    return weights.clamp(min=0.0).mul_(1.0 / (1.0 - dropout.probability))


def rotate(x_BTHK: Tensor, cos_BTR: Tensor, sin_BTR: Tensor) -> Tensor:
    """Rotate the first R columns of each head by the angles of its token, computed in fp32.

    Column i pairs with column i + R/2 (``rotate_half`` in transformers).

    Args:
        x_BTHK: queries or keys, of any floating dtype, which is that of the result; or of flat tokens, ``[N, H, K]``.
        cos_BTR: fp32 ``[B, T, R/2]``, or ``[N, R/2]``.
        sin_BTR: likewise.
    """
    num_pairs = cos_BTR.shape[-1]
    first, second, rest = x_BTHK.float().tensor_split((num_pairs, 2 * num_pairs), -1)
    cos, sin = cos_BTR.unsqueeze(-2), sin_BTR.unsqueeze(-2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1).to(x_BTHK.dtype)
