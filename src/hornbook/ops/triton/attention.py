"""Attention within the sequences of flat tokens, with dropout inside, in tiles: no scores are stored.

::

    spans    [3, N]   first token and end of each token's sequence, and its dropout column
    forward           a tile of queries and all keys from the first first token to the last end    y, log Σ exp
    of queries        the same, with weights exp(score − log Σ exp)                                dq, δ = Σ y dy
    of keys           a tile of keys and all queries that attend to it, of all heads of a group    dk, dv

Queries attend to keys whose sequence has the same first token, so padded, packed and unpadded sequences and documents
of windows are one case. The passes are those of FlashAttention-2 (Dao 2023), with exponentials to base 2. Dropout has
the bits of `hornbook.ops.dropout.keep_mask`, hashed again in each pass. No sum depends on the order of programs.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hornbook.ops.triton.dropout import _mix
from hornbook.ops.triton.programs import TILE, is_interpreted

_LOWEST: tl.constexpr = tl.constexpr(-1.0e30)
_FARTHEST: tl.constexpr = tl.constexpr(2147483647)
_TO_BASE_2: tl.constexpr = tl.constexpr(math.log2(math.e))


@triton.jit  # type: ignore[untyped-decorator]
def _rows(
    x: tl.tensor, tokens: tl.tensor, exists: tl.tensor, stride: tl.tensor, head: tl.tensor, size: tl.constexpr,
    width: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Load a head's rows ``[tokens, width]`` with zeros beyond its size."""
    columns = tl.arange(0, width)
    places = tokens.to(tl.int64)[:, None] * stride + (head * size + columns)[None, :]
    return tl.load(x + places, mask=exists[:, None] & (columns < size)[None, :], other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _put(
    x: tl.tensor, values: tl.tensor, tokens: tl.tensor, exists: tl.tensor, stride: tl.tensor, head: tl.tensor,
    size: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    """Store a head's rows."""
    columns = tl.arange(0, width)
    places = tokens.to(tl.int64)[:, None] * stride + (head * size + columns)[None, :]
    tl.store(x + places, values.to(x.dtype.element_ty), mask=exists[:, None] & (columns < size)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _product(
    a: tl.tensor, b: tl.tensor, widens: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Multiply tiles in the dtype of the second, with sums in fp32."""
    a = a.to(b.dtype)
    if widens:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit  # type: ignore[untyped-decorator]
def _capped(
    products: tl.tensor, scale: tl.tensor, cap: tl.tensor, has_cap: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Turn products into scores."""
    scores = products * scale
    if has_cap:  # cap · tanh(score / cap)
        scores = cap - 2.0 * cap / (tl.exp2(scores * (2.0 * _TO_BASE_2 / cap)) + 1.0)
    return scores


@triton.jit  # type: ignore[untyped-decorator]
def _sees(
    first: tl.tensor, rows: tl.tensor, first_of_key: tl.tensor, keys: tl.tensor, window: tl.tensor,
    causal: tl.constexpr, has_window: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return which queries attend to which keys; the arguments have the shape of tiles."""
    sees = first == first_of_key
    if causal:
        sees &= keys <= rows
    if has_window:
        sees &= tl.abs(rows - keys) < window
    return sees


@triton.jit  # type: ignore[untyped-decorator]
def _words(keys: tl.tensor, tokens: tl.tensor, exists: tl.tensor, head: tl.tensor, site: tl.tensor) -> tl.tensor:
    """Return the part of the hash that belongs to a head's queries."""
    words = tl.load(keys + tokens, mask=exists, other=0).to(tl.uint32) + head.to(tl.uint32) * 0x85EBCA6B
    return _mix(words ^ _mix((tl.zeros_like(tokens) + site + 1).to(tl.uint32)))


@triton.jit  # type: ignore[untyped-decorator]
def _keeps(words: tl.tensor, columns: tl.tensor, threshold: tl.tensor) -> tl.tensor:
    """Return which weights dropout keeps, given the hashes of queries and the columns of keys, multiplied."""
    return (_mix(words + columns) & 0x7FFFFFFF).to(tl.int32) >= threshold


@triton.jit  # type: ignore[untyped-decorator]
def _span_of_queries(
    spans: tl.tensor, num_tokens: tl.tensor, window: tl.tensor, causal: tl.constexpr, has_window: tl.constexpr,
    tile: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Return a program's queries, which of them exist, first tokens of their sequences, first key and end of keys."""
    start = tl.program_id(0) * tile
    rows = start + tl.arange(0, tile)
    exists = rows < num_tokens
    first = tl.load(spans + rows, mask=exists, other=_FARTHEST)
    end = tl.load(spans + num_tokens + rows, mask=exists, other=0)
    low, high = tl.min(first, 0), tl.max(end, 0)
    if causal:
        high = tl.minimum(high, start + tile)
    if has_window:
        low = tl.maximum(low, start - window + 1)
        high = tl.minimum(high, start + tile - 1 + window)
    return rows, exists, tl.where(end > rows, first, -2), low, high  # padding attends to nothing


@triton.jit  # type: ignore[untyped-decorator]
def _forward(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, spans: tl.tensor, keys: tl.tensor, y: tl.tensor, log_sums: tl.tensor,
    num_tokens: tl.tensor, q_stride: tl.tensor, k_stride: tl.tensor, v_stride: tl.tensor, per_group: tl.tensor,
    scale: tl.tensor, cap: tl.tensor, window: tl.tensor, first_head: tl.tensor, site: tl.tensor, threshold: tl.tensor,
    factor: tl.tensor, causal: tl.constexpr, has_window: tl.constexpr, has_cap: tl.constexpr, drops: tl.constexpr,
    size: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, step: tl.constexpr, widens: tl.constexpr,
) -> None:  # fmt: skip
    head = tl.program_id(1)
    group = head // per_group
    rows, exists, first, low, high = _span_of_queries(spans, num_tokens, window, causal, has_window, tile)
    queries = _rows(q, rows, exists, q_stride, head, size, width)
    if drops:
        words = _words(keys, rows, exists, head + first_head, site)[:, None]
    largest = tl.full((tile,), _LOWEST, tl.float32)
    total = tl.zeros((tile,), tl.float32)
    result = tl.zeros((tile, width), tl.float32)
    for start in range(low, high, step):
        places = start + tl.arange(0, step)
        inside = places < num_tokens
        of_keys = _rows(k, places, inside, k_stride, group, size, width)
        scores = _capped(_product(queries, tl.trans(of_keys), widens), scale, cap, has_cap) * _TO_BASE_2
        first_of_key = tl.load(spans + places, mask=inside, other=-1)
        sees = _sees(first[:, None], rows[:, None], first_of_key[None, :], places[None, :], window, causal, has_window)
        scores = tl.where(sees, scores, _LOWEST)
        higher = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.where(sees, tl.exp2(scores - higher[:, None]), 0.0)
        shrink = tl.exp2(largest - higher)
        total = total * shrink + tl.sum(weights, 1)
        largest = higher
        if drops:
            column = tl.load(spans + 2 * num_tokens + places, mask=inside, other=0).to(tl.uint32) * 0x9E3779B1
            weights = tl.where(_keeps(words, column[None, :], threshold), weights, 0.0)
        values = _rows(v, places, inside, v_stride, group, size, width)
        result = result * shrink[:, None] + _product(weights, values, widens)
    is_token = total > 0.0
    result *= tl.where(is_token, factor / tl.where(is_token, total, 1.0), 0.0)[:, None]
    _put(y, result, rows, exists, tl.num_programs(1) * size, head, size, width)
    log_sum = tl.where(is_token, largest + tl.log2(tl.where(is_token, total, 1.0)), 0.0)
    tl.store(log_sums + head.to(tl.int64) * num_tokens + rows, log_sum, mask=exists)


@triton.jit  # type: ignore[untyped-decorator]
def _of_queries(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, spans: tl.tensor, keys: tl.tensor, y: tl.tensor, gradient: tl.tensor,
    log_sums: tl.tensor, deltas: tl.tensor, of_q: tl.tensor, num_tokens: tl.tensor, q_stride: tl.tensor,
    k_stride: tl.tensor, v_stride: tl.tensor, of_stride: tl.tensor, per_group: tl.tensor, scale: tl.tensor,
    cap: tl.tensor, window: tl.tensor, first_head: tl.tensor, site: tl.tensor, threshold: tl.tensor,
    factor: tl.tensor, causal: tl.constexpr, has_window: tl.constexpr, has_cap: tl.constexpr, drops: tl.constexpr,
    size: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, step: tl.constexpr, widens: tl.constexpr,
) -> None:  # fmt: skip
    head = tl.program_id(1)
    group = head // per_group
    rows, exists, first, low, high = _span_of_queries(spans, num_tokens, window, causal, has_window, tile)
    queries = _rows(q, rows, exists, q_stride, head, size, width)
    upstream = _rows(gradient, rows, exists, tl.num_programs(1) * size, head, size, width)
    of_rows = head.to(tl.int64) * num_tokens + rows
    log_sum = tl.load(log_sums + of_rows, mask=exists, other=0.0)
    outputs = _rows(y, rows, exists, tl.num_programs(1) * size, head, size, width)
    delta = tl.sum(outputs.to(tl.float32) * upstream.to(tl.float32), 1)
    tl.store(deltas + of_rows, delta, mask=exists)
    if drops:
        words = _words(keys, rows, exists, head + first_head, site)[:, None]
    result = tl.zeros((tile, width), tl.float32)
    for start in range(low, high, step):
        places = start + tl.arange(0, step)
        inside = places < num_tokens
        of_keys = _rows(k, places, inside, k_stride, group, size, width)
        scores = _capped(_product(queries, tl.trans(of_keys), widens), scale, cap, has_cap)
        first_of_key = tl.load(spans + places, mask=inside, other=-1)
        sees = _sees(first[:, None], rows[:, None], first_of_key[None, :], places[None, :], window, causal, has_window)
        weights = tl.where(sees, tl.exp2(scores * _TO_BASE_2 - log_sum[:, None]), 0.0)
        values = _rows(v, places, inside, v_stride, group, size, width)
        of_weights = _product(upstream, tl.trans(values), widens) * factor
        if drops:
            column = tl.load(spans + 2 * num_tokens + places, mask=inside, other=0).to(tl.uint32) * 0x9E3779B1
            of_weights = tl.where(_keeps(words, column[None, :], threshold), of_weights, 0.0)
        of_scores = weights * (of_weights - delta[:, None])
        if has_cap:
            of_scores *= 1.0 - (scores / cap) * (scores / cap)
        result += _product(of_scores, of_keys, widens)
    _put(of_q, result * scale, rows, exists, of_stride, head, size, width)


@triton.jit  # type: ignore[untyped-decorator]
def _of_keys(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, spans: tl.tensor, keys: tl.tensor, gradient: tl.tensor,
    log_sums: tl.tensor, deltas: tl.tensor, of_k: tl.tensor, of_v: tl.tensor, num_tokens: tl.tensor,
    q_stride: tl.tensor, k_stride: tl.tensor, v_stride: tl.tensor, of_k_stride: tl.tensor, of_v_stride: tl.tensor,
    per_group: tl.tensor, scale: tl.tensor, cap: tl.tensor, window: tl.tensor, first_head: tl.tensor, site: tl.tensor,
    threshold: tl.tensor, factor: tl.tensor, causal: tl.constexpr, has_window: tl.constexpr, has_cap: tl.constexpr,
    drops: tl.constexpr, size: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, step: tl.constexpr,
    widens: tl.constexpr,
) -> None:  # fmt: skip
    group = tl.program_id(1)
    places = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = places < num_tokens
    first_of_key = tl.load(spans + places, mask=inside, other=_FARTHEST)
    low = tl.min(first_of_key, 0)
    high = tl.max(tl.load(spans + num_tokens + places, mask=inside, other=0), 0)
    if causal:
        low = tl.program_id(0) * tile
    if has_window:
        low = tl.maximum(low, tl.program_id(0) * tile - window + 1)
        high = tl.minimum(high, tl.program_id(0) * tile + tile - 1 + window)
    of_keys = _rows(k, places, inside, k_stride, group, size, width)
    values = _rows(v, places, inside, v_stride, group, size, width)
    if drops:
        column = tl.load(spans + 2 * num_tokens + places, mask=inside, other=0).to(tl.uint32) * 0x9E3779B1
    key_sums = tl.zeros((tile, width), tl.float32)
    value_sums = tl.zeros((tile, width), tl.float32)
    for member in range(per_group):
        head = group * per_group + member
        for start in range(low, high, step):
            rows = start + tl.arange(0, step)
            exists = rows < num_tokens
            first = tl.load(spans + rows, mask=exists, other=-1)
            first = tl.where(tl.load(spans + num_tokens + rows, mask=exists, other=0) > rows, first, -2)
            queries = _rows(q, rows, exists, q_stride, head, size, width)
            scores = _capped(_product(of_keys, tl.trans(queries), widens), scale, cap, has_cap)
            sees = _sees(
                first[None, :], rows[None, :], first_of_key[:, None], places[:, None], window, causal, has_window
            )
            of_rows = head.to(tl.int64) * num_tokens + rows
            log_sum = tl.load(log_sums + of_rows, mask=exists, other=0.0)
            weights = tl.where(sees, tl.exp2(scores * _TO_BASE_2 - log_sum[None, :]), 0.0)
            upstream = _rows(gradient, rows, exists, tl.num_programs(1) * per_group * size, head, size, width)
            of_weights = _product(values, tl.trans(upstream), widens) * factor
            kept = weights
            if drops:
                keeps = _keeps(_words(keys, rows, exists, head + first_head, site)[None, :], column[:, None], threshold)
                kept, of_weights = tl.where(keeps, weights, 0.0), tl.where(keeps, of_weights, 0.0)
            value_sums += _product(kept, upstream, widens)
            of_scores = weights * (of_weights - tl.load(deltas + of_rows, mask=exists, other=0.0)[None, :])
            if has_cap:
                of_scores *= 1.0 - (scores / cap) * (scores / cap)
            key_sums += _product(of_scores, queries, widens)
    _put(of_k, key_sums * scale, places, inside, of_k_stride, group, size, width)
    _put(of_v, value_sums * factor, places, inside, of_v_stride, group, size, width)


class Settings(NamedTuple):
    """How queries attend to keys."""

    is_causal: bool
    scale: float
    """Of the products of queries and keys."""
    window: int | None
    """A token attends only to tokens that are less than this away; None: no limit."""
    cap: float | None
    """Scores become ``cap tanh(score / cap)``; None: no limit."""
    first_head: int
    """Index in the model of the first head, for dropout."""
    site: int
    probability: float
    """Share of weights to drop; used with dropout keys only."""


def tiles(kernel: str, size: int, num_bytes: int) -> dict[str, int]:
    """Return the tile of a kernel, ``forward``, ``of_queries`` or ``of_keys``, and the options of its compilation.

    Args:
        kernel: its name.
        size: K.
        num_bytes: of an element.
    """
    is_of_keys = kernel == "of_keys"
    if num_bytes == 4:
        return {"tile": TILE, "step": 32, "num_warps": 8, "num_stages": 2}
    if size > 128:
        return {"tile": 32, "step": 16 if is_of_keys else 32, "num_warps": 4, "num_stages": 1}
    num_warps = 8 if size > 64 else 4
    return {"tile": TILE, "step": 32 if is_of_keys else 64, "num_warps": num_warps, "num_stages": 2}


def forward(
    packed: tuple[Tensor, ...], spans_3N: Tensor, keys_N: Tensor | None, settings: Settings
) -> tuple[Tensor, Tensor]:
    """Return the attention and the logarithms of sums; see `hornbook.ops.triton.operators.triton_attention`."""
    q_NHK, *_ = heads = _heads(packed)
    y_NHK = torch.empty(q_NHK.shape, dtype=q_NHK.dtype, device=q_NHK.device)
    log_sums_HN = torch.empty(q_NHK.shape[1], len(q_NHK), dtype=torch.float32, device=q_NHK.device)
    if y_NHK.numel():
        numbers, fixed = _arguments(heads, keys_N, settings, "forward")
        keys = spans_3N if keys_N is None else keys_N
        strides = (len(q_NHK), *(head.stride(0) for head in heads))
        grid = (triton.cdiv(len(q_NHK), fixed["tile"]), q_NHK.shape[1])
        _forward[grid](*heads, spans_3N, keys, y_NHK, log_sums_HN, *strides, *numbers, **fixed)
    return y_NHK, log_sums_HN


def backward(
    gradient_NHK: Tensor,
    y_NHK: Tensor,
    log_sums_HN: Tensor,
    packed: tuple[Tensor, ...],
    spans_3N: Tensor,
    keys_N: Tensor | None,
    settings: Settings,
) -> list[Tensor]:
    """Return the gradients of ``packed``; arguments as for ``forward``, with its results."""
    heads, of_packed = (
        _heads(packed),
        [torch.empty(part.shape, dtype=part.dtype, device=part.device) for part in packed],
    )
    (q_NHK, k_NGK, _), of_heads = heads, _heads(tuple(of_packed))
    if q_NHK.numel():
        gradient_NHK, deltas_HN = gradient_NHK.contiguous(), torch.empty_like(log_sums_HN)
        keys = spans_3N if keys_N is None else keys_N
        strides = (len(q_NHK), *(head.stride(0) for head in heads))
        numbers, fixed = _arguments(heads, keys_N, settings, "of_queries")
        grid = (triton.cdiv(len(q_NHK), fixed["tile"]), q_NHK.shape[1])
        given = (*heads, spans_3N, keys, y_NHK, gradient_NHK, log_sums_HN, deltas_HN)
        _of_queries[grid](*given, of_heads[0], *strides, of_heads[0].stride(0), *numbers, **fixed)
        numbers, fixed = _arguments(heads, keys_N, settings, "of_keys")
        grid = (triton.cdiv(len(q_NHK), fixed["tile"]), k_NGK.shape[1])
        given = (*heads, spans_3N, keys, gradient_NHK, log_sums_HN, deltas_HN)
        _of_keys[grid](*given, *of_heads[1:], *strides, *(of.stride(0) for of in of_heads[1:]), *numbers, **fixed)
    return of_packed


def _heads(packed: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return views: query ``[N, H, K]``, key and value ``[N, G, K]``."""
    return tuple(part for tensor in packed for part in (tensor.unbind(1) if tensor.dim() == 4 else (tensor,)))


def _arguments(
    heads: tuple[Tensor, ...], keys_N: Tensor | None, settings: Settings, kernel: str
) -> tuple[tuple[float, ...], dict[str, Any]]:
    """Return the numbers that all kernels take, and the constants and options of one."""
    (q_NHK, k_NGK, _), drops = heads, keys_N is not None
    size = q_NHK.shape[2]
    probability = settings.probability if drops else 0.0
    numbers = (
        q_NHK.shape[1] // k_NGK.shape[1],
        settings.scale,
        settings.cap or 1.0,
        settings.window or 0,
        settings.first_head,
        settings.site,
        int(probability * (1 << 31)),
        1.0 / (1.0 - probability),
    )
    has = {"has_window": settings.window is not None, "has_cap": settings.cap is not None, "drops": drops}
    width = {"size": size, "width": max(16, triton.next_power_of_2(size))}
    widens = is_interpreted() and q_NHK.dtype == torch.bfloat16
    fixed = {"causal": settings.is_causal, **has, **width, "widens": widens}
    return numbers, {**fixed, **tiles(kernel, size, q_NHK.element_size())}
