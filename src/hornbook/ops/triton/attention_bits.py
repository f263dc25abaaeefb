"""The bits of attention's dropout: hashed and stored once a layer, and read by the three other kernels.

::

    dropped   int32 [H, W, N], a bit for each weight:    head h, query n    word 0 1 2 ...    of 32 keys each

The first word of a query has its first key, though not always as its first bit: a word has the keys from a multiple of
32 on. Bits are those of `hornbook.ops.dropout.keep_mask`, hashed by a kernel of its own, so that the three others need
no hash, as Ma et al. 2024 propose ("Reducing the Cost of Dropout in Flash-Attention by Hiding RNG with GEMM").
"""

import triton
import triton.language as tl

from hornbook.ops.triton.attention_tiles import _span_of_queries
from hornbook.ops.triton.dropout import _mix


@triton.jit  # type: ignore[untyped-decorator]
def _words(keys: tl.tensor, tokens: tl.tensor, exists: tl.tensor, head: tl.tensor, site: tl.tensor) -> tl.tensor:
    """Return the part of the hash that belongs to a head's queries."""
    words = tl.load(keys + tokens, mask=exists, other=0).to(tl.uint32) + head.to(tl.uint32) * 0x85EBCA6B
    return _mix(words ^ _mix((tl.zeros_like(tokens) + site + 1).to(tl.uint32)))


@triton.jit  # type: ignore[untyped-decorator]
def _first_word(
    first: tl.tensor, rows: tl.tensor, window: tl.tensor, has_window: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return which 32 keys the first word of each query has, given the first tokens of their sequences."""
    if has_window:
        first = tl.maximum(first, rows - window + 1)
    return first >> 5


@triton.jit  # type: ignore[untyped-decorator]
def _drops(
    dropped: tl.tensor, start: tl.tensor, first_word: tl.tensor, rows: tl.tensor, exists: tl.tensor, head: tl.tensor,
    num_words: tl.tensor, num_tokens: tl.tensor, number: tl.constexpr, keys_first: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return which weights are dropped, for a number of keys from one on, both multiples of 32: ``[rows, keys]``.

    The tile is ``[keys, rows]`` if ``keys_first``. Words are loaded once and spread over 32 keys without copies.
    """
    words: tl.constexpr = number // 32
    own = tl.expand_dims((start >> 5) + tl.arange(0, words), 1 if keys_first else 0)
    own -= tl.expand_dims(first_word, 0 if keys_first else 1)
    own = tl.minimum(tl.maximum(own, 0), num_words - 1)  # of pairs without words, which are hidden, any bits will do
    rows, exists = tl.expand_dims(rows, 0 if keys_first else 1), tl.expand_dims(exists, 0 if keys_first else 1)
    # The same address in two ways: each lets its kernels keep all registers, in all dtypes and on all GPUs.
    if keys_first:
        places = dropped + (head * num_words).to(tl.int64) * num_tokens + rows + own.to(tl.int64) * num_tokens
    else:
        places = dropped + ((head * num_words + own).to(tl.int64) * num_tokens + rows)
    found = tl.load(places, mask=exists, other=0)
    bits = 1 << (tl.arange(0, number) % 32)
    if keys_first:
        spread = tl.reshape(tl.broadcast_to(found[:, None, :], (words, 32, rows.shape[1])), (number, rows.shape[1]))
        is_dropped = (spread & bits[:, None]) != 0
    else:
        spread = tl.reshape(tl.broadcast_to(found[:, :, None], (rows.shape[0], words, 32)), (rows.shape[0], number))
        is_dropped = (spread & bits[None, :]) != 0
    return is_dropped


@triton.jit(do_not_specialize=["one"])  # type: ignore[untyped-decorator]
def _hash_dropped(
    spans: tl.tensor, keys: tl.tensor, dropped: tl.tensor, num_tokens: tl.tensor, num_words: tl.tensor,
    window: tl.tensor, first_head: tl.tensor, site: tl.tensor, below: tl.tensor, golden: tl.tensor, one: tl.tensor,
    causal: tl.constexpr, has_window: tl.constexpr, tile: tl.constexpr,
) -> None:  # fmt: skip
    # Of numbers that it does not know, the compiler makes multiplications with an addition, in units that have time,
    # not additions in those of shifts and logic, which limit this kernel; ``below`` is minus the threshold.
    head, golden = tl.program_id(1), golden.to(tl.uint32)
    rows, exists, _, low, high, _, _ = _span_of_queries(spans, num_tokens, window, causal, has_window, False, tile, 32)
    first = tl.load(spans + rows, mask=exists, other=0)
    column = tl.load(spans + 2 * num_tokens + rows, mask=exists, other=0)
    last = (column - rows + low + 31).to(tl.uint32) * 0x9E3779B1  # of the next 32 keys
    last += _words(keys, rows, exists, head + first_head, site)
    first_word = _first_word(first, rows, window, has_window)
    of_head = dropped + (head * num_words).to(tl.int64) * num_tokens + rows
    for number in range(low // 32, (high + 31) // 32):
        word = tl.zeros((tile,), tl.int32)
        for bit in tl.static_range(32):  # the last key first, which becomes the highest bit
            hashed = (_mix(last - golden * bit) & 0x7FFFFFFF).to(tl.int32)
            word = (word << 1) | (((hashed * one + below) >> 31) & 1)  # 1 if less than the threshold
        last += golden * 32
        own = number - first_word
        places = of_head + own.to(tl.int64) * num_tokens
        tl.store(places, word, mask=exists & (own.to(tl.uint32) < num_words.to(tl.uint32)))
