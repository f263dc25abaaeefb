"""Attention within the sequences of flat tokens, with dropout inside, in tiles: no scores are stored.

::

    dropped           a bit for each weight, from hashes; only with dropout                        [H, W, N]
    forward           a tile of queries and all keys from the first first token to the last end    y, log Σ exp
    of queries        the same, with weights exp(score − log Σ exp)                                dq, δ = Σ y dy
    of keys           a tile of keys and all queries that attend to it, of all heads of a group    dk, dv

Queries attend to keys whose sequence has the same first token, so padded, packed and unpadded sequences and documents
of windows are one case; only tiles that have hidden pairs, too, look at the spans of their tokens. The passes are those
of FlashAttention-2 (Dao 2023), with exponentials to base 2. The forward pass hashes and stores a bit for each weight
(`hornbook.ops.triton.attention_bits`), W·N / 8 bytes, which saves two of three hashes. No sum depends on the order of
programs.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hornbook.ops.triton.attention_bits import _drops, _first_word, _hash_dropped
from hornbook.ops.triton.attention_tiles import (
    _FARTHEST,
    _exist,
    _product,
    _put,
    _put_sum,
    _rows,
    _scores,
    _sees,
    _shared,
    _span_of_queries,
    _uncapped,
    _unit,
)
from hornbook.ops.triton.programs import TILE, is_interpreted, num_words

_LOWEST: tl.constexpr = tl.constexpr(-1.0e15)
"""Score of a pair that is hidden, whose square is finite."""
HASHED = {"tile": 128, "num_warps": 4}
"""Queries of a program that hashes, and its warps."""


@triton.jit  # type: ignore[untyped-decorator]
def _forward(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, spans: tl.tensor, dropped: tl.tensor, y: tl.tensor,
    log_sums: tl.tensor, num_tokens: tl.tensor, q_stride: tl.tensor, k_stride: tl.tensor, v_stride: tl.tensor,
    per_group: tl.tensor, scale: tl.tensor, cap: tl.tensor, window: tl.tensor, num_words: tl.tensor,
    factor: tl.tensor, causal: tl.constexpr, has_window: tl.constexpr, has_cap: tl.constexpr, drops: tl.constexpr,
    whole: tl.constexpr, size: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, step: tl.constexpr,
    widens: tl.constexpr,
) -> None:  # fmt: skip
    head, own = tl.program_id(1), tl.program_id(0) * tile
    group = head // per_group
    rows, exists, first, low, high, shared_low, shared_high = _span_of_queries(
        spans, num_tokens, window, causal, has_window, whole, tile, step
    )
    queries = _rows(q, own, exists, q_stride, head, size, width)
    if drops:
        first_word = _first_word(tl.load(spans + rows, mask=exists, other=0), rows, window, has_window)
    unit = _unit(scale, cap, has_cap)
    largest = tl.full((tile,), _LOWEST / 2, tl.float32)  # whose difference to a hidden score is low, too
    total = tl.zeros((tile,), tl.float32)
    result = tl.zeros((tile, width), tl.float32)
    for start in range(low, high, step):
        places = start + tl.arange(0, step)
        inside = _exist(places, num_tokens, whole)
        of_keys = _rows(k, start, inside, k_stride, group, size, width)
        scores = _scores(_product(queries, tl.trans(of_keys), widens), scale, cap, has_cap)
        if (start < shared_low) | (start + step > shared_high):
            first_of_key = tl.load(spans + places, mask=inside, other=-1)[None, :]
            sees = _sees(first[:, None], rows[:, None], first_of_key, places[None, :], window, causal, has_window)
            scores = tl.where(sees, scores, _LOWEST)
        higher = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores * unit - (higher * unit)[:, None])
        shrink = tl.exp2((largest - higher) * unit)
        total = total * shrink + tl.sum(weights, 1)
        largest = higher
        if drops:
            is_dropped = _drops(
                dropped, start, first_word, rows, exists, head, num_words, num_tokens, step, keys_first=False
            )
            weights -= tl.where(is_dropped, weights, 0.0)  # which compiles to fewer instructions than zeros
        values = _rows(v, start, inside, v_stride, group, size, width)
        result = result * shrink[:, None] + _product(weights, values, widens)
    is_token = total > 0.0
    result *= tl.where(is_token, factor / tl.where(is_token, total, 1.0), 0.0)[:, None]
    _put(y, result, own, exists, tl.num_programs(1) * size, head, size, width)
    log_sum = tl.where(is_token, largest * unit + tl.log2(tl.where(is_token, total, 1.0)), 0.0)
    tl.store(log_sums + head.to(tl.int64) * num_tokens + rows, log_sum, mask=exists)


@triton.jit  # type: ignore[untyped-decorator]
def _of_queries(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, spans: tl.tensor, dropped: tl.tensor, y: tl.tensor,
    gradient: tl.tensor, log_sums: tl.tensor, deltas: tl.tensor, of_q: tl.tensor, sums: tl.tensor,
    num_tokens: tl.tensor, q_stride: tl.tensor, k_stride: tl.tensor, v_stride: tl.tensor, of_stride: tl.tensor,
    sums_stride: tl.tensor, per_group: tl.tensor, scale: tl.tensor, cap: tl.tensor, window: tl.tensor,
    num_words: tl.tensor, factor: tl.tensor, causal: tl.constexpr, has_window: tl.constexpr, has_cap: tl.constexpr,
    drops: tl.constexpr, whole: tl.constexpr, size: tl.constexpr, width: tl.constexpr, tile: tl.constexpr,
    step: tl.constexpr, widens: tl.constexpr,
) -> None:  # fmt: skip
    head, own = tl.program_id(1), tl.program_id(0) * tile
    group = head // per_group
    rows, exists, first, low, high, shared_low, shared_high = _span_of_queries(
        spans, num_tokens, window, causal, has_window, whole, tile, step
    )
    queries = _rows(q, own, exists, q_stride, head, size, width)
    upstream = _rows(gradient, own, exists, tl.num_programs(1) * size, head, size, width)
    of_rows = head.to(tl.int64) * num_tokens + rows
    log_sum = tl.load(log_sums + of_rows, mask=exists, other=0.0)
    outputs = _rows(y, own, exists, tl.num_programs(1) * size, head, size, width)
    delta = tl.sum(outputs.to(tl.float32) * upstream.to(tl.float32), 1) / factor
    tl.store(deltas + of_rows, delta, mask=exists)
    if drops:
        first_word = _first_word(tl.load(spans + rows, mask=exists, other=0), rows, window, has_window)
    result, unit = tl.zeros((tile, width), tl.float32), _unit(scale, cap, has_cap)
    for start in range(low, high, step):
        places = start + tl.arange(0, step)
        inside = _exist(places, num_tokens, whole)
        of_keys = _rows(k, start, inside, k_stride, group, size, width)
        scores = _scores(_product(queries, tl.trans(of_keys), widens), scale, cap, has_cap)
        if (start < shared_low) | (start + step > shared_high):
            first_of_key = tl.load(spans + places, mask=inside, other=-1)[None, :]
            sees = _sees(first[:, None], rows[:, None], first_of_key, places[None, :], window, causal, has_window)
            scores = tl.where(sees, scores, _LOWEST)
        weights = tl.exp2(scores * unit - log_sum[:, None])
        kept = weights
        if drops:
            is_dropped = _drops(
                dropped, start, first_word, rows, exists, head, num_words, num_tokens, step, keys_first=False
            )
            kept = tl.where(is_dropped, 0.0, weights)
        values = _rows(v, start, inside, v_stride, group, size, width)
        of_scores = kept * _product(upstream, tl.trans(values), widens) - weights * delta[:, None]
        result += _product(_uncapped(of_scores, scores, has_cap), of_keys, widens)
    result *= scale * factor
    _put(of_q, result, own, exists, of_stride, head, size, width)
    _put_sum(sums, result, sums_stride, head, size, width)


@triton.jit  # type: ignore[untyped-decorator]
def _of_keys(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, spans: tl.tensor, dropped: tl.tensor, gradient: tl.tensor,
    log_sums: tl.tensor, deltas: tl.tensor, of_k: tl.tensor, of_v: tl.tensor, k_sums: tl.tensor, v_sums: tl.tensor,
    num_tokens: tl.tensor, q_stride: tl.tensor, k_stride: tl.tensor, v_stride: tl.tensor, of_k_stride: tl.tensor,
    of_v_stride: tl.tensor, k_sums_stride: tl.tensor, v_sums_stride: tl.tensor, per_group: tl.tensor,
    scale: tl.tensor, cap: tl.tensor, window: tl.tensor, num_words: tl.tensor, factor: tl.tensor,
    causal: tl.constexpr, has_window: tl.constexpr, has_cap: tl.constexpr, drops: tl.constexpr, whole: tl.constexpr,
    size: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, step: tl.constexpr, widens: tl.constexpr,
) -> None:  # fmt: skip
    group = tl.program_id(1)
    own = tl.program_id(0) * tile
    places = own + tl.arange(0, tile)
    inside = _exist(places, num_tokens, whole)
    first_of_key = tl.load(spans + places, mask=inside, other=_FARTHEST)
    low = tl.min(first_of_key, 0)
    high = tl.max(tl.load(spans + num_tokens + places, mask=inside, other=0), 0)
    shared_low, shared_high = _shared(spans, num_tokens, places, inside, low, high, first_of_key)
    if causal:
        low = own
        shared_low = tl.maximum(shared_low, own + tile - 1)
    if has_window:
        low = tl.maximum(low, own - window + 1)
        high = tl.minimum(high, own + tile - 1 + window)
        shared_low = tl.maximum(shared_low, own + tile - window)
        shared_high = tl.minimum(shared_high, own + window)
    low = low // step * step
    of_keys = _rows(k, own, inside, k_stride, group, size, width)
    values, unit = _rows(v, own, inside, v_stride, group, size, width), _unit(scale, cap, has_cap)
    key_sums, value_sums = tl.zeros((tile, width), tl.float32), tl.zeros((tile, width), tl.float32)
    for member in range(per_group):
        head = group * per_group + member
        for start in range(low, high, step):
            rows = start + tl.arange(0, step)
            exists = _exist(rows, num_tokens, whole)
            queries = _rows(q, start, exists, q_stride, head, size, width)
            scores = _scores(_product(of_keys, tl.trans(queries), widens), scale, cap, has_cap)
            if (start < shared_low) | (start + step > shared_high):
                first = tl.load(spans + rows, mask=exists, other=-1)
                first = tl.where(tl.load(spans + num_tokens + rows, mask=exists, other=0) > rows, first, -2)[None, :]
                sees = _sees(first, rows[None, :], first_of_key[:, None], places[:, None], window, causal, has_window)
                scores = tl.where(sees, scores, _LOWEST)
            of_rows = head.to(tl.int64) * num_tokens + rows
            weights = tl.exp2(scores * unit - tl.load(log_sums + of_rows, mask=exists, other=0.0)[None, :])
            upstream = _rows(gradient, start, exists, tl.num_programs(1) * per_group * size, head, size, width)
            kept = weights
            if drops:
                first_word = _first_word(tl.load(spans + rows, mask=exists, other=0), rows, window, has_window)
                is_dropped = _drops(
                    dropped, own, first_word, rows, exists, head, num_words, num_tokens, tile, keys_first=True
                )
                kept = tl.where(is_dropped, 0.0, weights)
            value_sums += _product(kept, upstream, widens)
            delta = tl.load(deltas + of_rows, mask=exists, other=0.0)[None, :]
            of_scores = kept * _product(values, tl.trans(upstream), widens) - weights * delta
            key_sums += _product(_uncapped(of_scores, scores, has_cap), queries, widens)
    key_sums, value_sums = key_sums * (scale * factor), value_sums * factor
    _put(of_k, key_sums, own, inside, of_k_stride, group, size, width)
    _put(of_v, value_sums, own, inside, of_v_stride, group, size, width)
    _put_sum(k_sums, key_sums, k_sums_stride, group, size, width)
    _put_sum(v_sums, value_sums, v_sums_stride, group, size, width)


class Settings(NamedTuple):
    """How queries attend to keys."""

    is_causal: bool
    scale: float
    """Of the products of queries and keys."""
    window: int | None
    """A token attends only to tokens that are less than this away; None: no limit."""
    cap: float | None
    """Scores become ``cap tanh(score / cap)``; None: no limit."""
    probability: float
    """Share of weights that are dropped, if any are."""


def tiles(kernel: str, size: int, num_bytes: int, architecture: int) -> dict[str, int]:
    """Return the tile of a kernel, ``forward``, ``of_queries`` or ``of_keys``, and the options of its compilation.

    Args:
        kernel: its name.
        size: K.
        num_bytes: of an element.
        architecture: 80 for an A100, 90 for an H100.
    """
    is_of_keys = kernel == "of_keys"
    if num_bytes == 4:
        num_stages = {"forward": 2, "of_queries": 3, "of_keys": 1}[kernel]
        return {"tile": TILE, "step": 16 if is_of_keys else 32, "num_warps": 8, "num_stages": num_stages}
    if size > 128:
        return {"tile": 32, "step": 16 if is_of_keys else 32, "num_warps": 4, "num_stages": 1}
    if size > 64:
        return {"tile": TILE, "step": 32 if is_of_keys else 64, "num_warps": 8, "num_stages": 2}
    is_narrow = kernel != "forward" and architecture < 90  # whose products also read both factors from registers
    num_stages = 1 if is_of_keys and 80 < architecture < 90 else 2
    return {"tile": TILE, "step": 32 if is_narrow else 64, "num_warps": 4, "num_stages": num_stages}


def hash_dropped(
    num_heads: int,
    spans_4N: Tensor,
    longest: int,
    keys_N: Tensor,
    dropout: tuple[int, int],
    settings: Settings,
) -> Tensor:
    """Return the bits of the weights to drop, int32 ``[H, W, N]``; see `hornbook.ops.triton.attention_bits`."""
    num_tokens = len(keys_N)
    size = num_words(longest, settings.window, is_causal=settings.is_causal)
    dropped_HWN = torch.empty(num_heads, size, num_tokens, dtype=torch.int32, device=keys_N.device)
    if dropped_HWN.numel():
        below = -int(settings.probability * (1 << 31))
        golden = 0x9E3779B1 - (1 << 32)  # of the columns' numbers, as int32
        numbers = (num_tokens, size, settings.window or 0, *dropout, below, golden, 1)
        has = {"causal": settings.is_causal, "has_window": settings.window is not None}
        grid = (triton.cdiv(num_tokens, HASHED["tile"]), num_heads)
        _hash_dropped[grid](spans_4N, keys_N, dropped_HWN, *numbers, **has, **HASHED)
    return dropped_HWN


def forward(
    packed: tuple[Tensor, ...], spans_4N: Tensor, dropped_HWN: Tensor, settings: Settings
) -> tuple[Tensor, Tensor]:
    """Return the attention and the logarithms of sums; see `hornbook.ops.triton.operators.triton_attention`.

    Args:
        packed: queries, keys and values.
        spans_4N: see `hornbook.ops.spans`.
        dropped_HWN: of ``hash_dropped``; W = 0 for no dropout.
        settings: how queries attend to keys.
    """
    q_NHK, *_ = heads = _heads(packed)
    y_NHK = torch.empty(q_NHK.shape, dtype=q_NHK.dtype, device=q_NHK.device)
    log_sums_HN = torch.empty(q_NHK.shape[1], len(q_NHK), dtype=torch.float32, device=q_NHK.device)
    if y_NHK.numel():
        numbers, fixed = _arguments(heads, dropped_HWN, settings, "forward")
        strides = (len(q_NHK), *(head.stride(0) for head in heads))
        grid = (triton.cdiv(len(q_NHK), fixed["tile"]), q_NHK.shape[1])
        _forward[grid](*heads, spans_4N, dropped_HWN, y_NHK, log_sums_HN, *strides, *numbers, **fixed)
    return y_NHK, log_sums_HN


def backward(
    gradient_NHK: Tensor,
    y_NHK: Tensor,
    log_sums_HN: Tensor,
    packed: tuple[Tensor, ...],
    spans_4N: Tensor,
    dropped_HWN: Tensor,
    settings: Settings,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradients of ``packed`` and their sums over the tokens; arguments as for ``forward``, its results."""
    of_packed = [torch.empty(part.shape, dtype=part.dtype, device=part.device) for part in packed]
    heads, of_heads = _heads(packed), _heads(tuple(of_packed))
    q_NHK, k_NGK, _ = heads
    numbers, fixed = _arguments(heads, dropped_HWN, settings, "of_queries")
    num_tiles = triton.cdiv(len(q_NHK), fixed["tile"])  # of queries as of keys
    sums = [torch.empty(num_tiles, *part.shape[1:], dtype=torch.float32, device=part.device) for part in packed]
    of_sums = _heads(tuple(sums))
    if q_NHK.numel():
        gradient_NHK, deltas_HN = gradient_NHK.contiguous(), torch.empty_like(log_sums_HN)
        strides = (len(q_NHK), *(head.stride(0) for head in heads))
        given = (*heads, spans_4N, dropped_HWN, y_NHK, gradient_NHK, log_sums_HN, deltas_HN)
        results, of_strides = (of_heads[0], of_sums[0]), (of_heads[0].stride(0), of_sums[0].stride(0))
        _of_queries[(num_tiles, q_NHK.shape[1])](*given, *results, *strides, *of_strides, *numbers, **fixed)
        numbers, fixed = _arguments(heads, dropped_HWN, settings, "of_keys")
        given = (*heads, spans_4N, dropped_HWN, gradient_NHK, log_sums_HN, deltas_HN)
        of_keys = (*of_heads[1:], *of_sums[1:])
        of_key_strides = (of.stride(0) for of in of_keys)
        _of_keys[(num_tiles, k_NGK.shape[1])](*given, *of_keys, *strides, *of_key_strides, *numbers, **fixed)
    return of_packed, [each.sum(0) for each in sums]


def _heads(packed: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return views: query ``[N, H, K]``, key and value ``[N, G, K]``."""
    return tuple(part for tensor in packed for part in (tensor.unbind(1) if tensor.dim() == 4 else (tensor,)))


def _arguments(
    heads: tuple[Tensor, ...], dropped_HWN: Tensor, settings: Settings, kernel: str
) -> tuple[tuple[float, ...], dict[str, Any]]:
    """Return the numbers that all kernels take, and the constants and options of one."""
    (q_NHK, k_NGK, _), words = heads, dropped_HWN.shape[1]
    size, drops = q_NHK.shape[2], words > 0
    numbers = (
        q_NHK.shape[1] // k_NGK.shape[1],
        settings.scale,
        settings.cap or 1.0,
        settings.window or 0,
        words,
        1.0 / (1.0 - settings.probability) if drops else 1.0,
    )
    has = {"has_window": settings.window is not None, "has_cap": settings.cap is not None, "drops": drops}
    has["whole"] = len(q_NHK) % TILE == 0
    width = {"size": size, "width": max(16, triton.next_power_of_2(size))}
    widens = is_interpreted() and q_NHK.dtype == torch.bfloat16
    fixed = {"causal": settings.is_causal, **has, **width, "widens": widens}
    major, minor = torch.cuda.get_device_capability(q_NHK.device) if q_NHK.is_cuda else (9, 0)
    return numbers, {**fixed, **tiles(kernel, size, q_NHK.element_size(), 10 * major + minor)}
