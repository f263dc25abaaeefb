"""What attention's kernels share: which pairs of a tile exist, rows of heads, products and scores.

::

    spans     first token and end of each token's sequence, its dropout column, whether no others are between
"""

import math

import triton
import triton.language as tl

_TO_BASE_2: tl.constexpr = tl.constexpr(math.log2(math.e))
_FARTHEST: tl.constexpr = tl.constexpr(2147483647)


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
def _exist(
    tokens: tl.tensor, num_tokens: tl.tensor, whole: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return which tokens there are: all, as the compiler knows, if ``num_tokens`` is a multiple of all tiles.

    Tiles begin at multiples of their size, so none goes beyond the last token then.
    """
    return (tokens < num_tokens) | whole


@triton.jit  # type: ignore[untyped-decorator]
def _span_of_queries(
    spans: tl.tensor, num_tokens: tl.tensor, window: tl.tensor, causal: tl.constexpr, has_window: tl.constexpr,
    whole: tl.constexpr, tile: tl.constexpr, step: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Return a program's queries, which of them exist, the first tokens of their sequences, first key and end of keys.

    The first key is a multiple of ``step``. The last two are first key and end of the keys to which all of them attend.
    """
    start = tl.program_id(0) * tile
    rows = start + tl.arange(0, tile)
    exists = _exist(rows, num_tokens, whole)
    first = tl.load(spans + rows, mask=exists, other=_FARTHEST)
    end = tl.load(spans + num_tokens + rows, mask=exists, other=0)
    low, high = tl.min(first, 0), tl.max(end, 0)
    shared_low, shared_high = _shared(spans, num_tokens, rows, exists, low, high, first)
    if causal:
        high = tl.minimum(high, start + tile)
        shared_high = tl.minimum(shared_high, start + 1)
    if has_window:
        low = tl.maximum(low, start - window + 1)
        high = tl.minimum(high, start + tile - 1 + window)
        shared_low = tl.maximum(shared_low, start + tile - window)
        shared_high = tl.minimum(shared_high, start + window)
    first = tl.where(end > rows, first, -2)  # padding attends to nothing
    return rows, exists, first, low // step * step, high, shared_low, shared_high


@triton.jit  # type: ignore[untyped-decorator]
def _shared(
    spans: tl.tensor, num_tokens: tl.tensor, tokens: tl.tensor, exists: tl.tensor, low: tl.tensor, high: tl.tensor,
    first: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Return first token and end of the one sequence of all tokens, which nothing interrupts; otherwise no tokens."""
    is_whole = tl.min(tl.load(spans + 3 * num_tokens + tokens, mask=exists, other=0), 0) > 0
    return low, tl.where(is_whole & (low == tl.max(first, 0)), high, low)


@triton.jit  # type: ignore[untyped-decorator]
def _places(
    x: tl.tensor, start: tl.tensor, stride: tl.tensor, head: tl.tensor, size: tl.constexpr, width: tl.constexpr,
    number: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the addresses of a head's rows ``[number, width]`` from a token on; only the first is a long product."""
    first = x + (tl.zeros((), tl.int64) + start) * stride + head * size
    return first + (tl.arange(0, number)[:, None] * stride + tl.arange(0, width)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _rows(
    x: tl.tensor, start: tl.tensor, exists: tl.tensor, stride: tl.tensor, head: tl.tensor, size: tl.constexpr,
    width: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Load a head's rows with zeros beyond its size."""
    mask = exists[:, None] & (tl.arange(0, width) < size)[None, :]
    return tl.load(_places(x, start, stride, head, size, width, exists.shape[0]), mask=mask, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _put(
    x: tl.tensor, values: tl.tensor, start: tl.tensor, exists: tl.tensor, stride: tl.tensor, head: tl.tensor,
    size: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    """Store a head's rows."""
    mask = exists[:, None] & (tl.arange(0, width) < size)[None, :]
    places = _places(x, start, stride, head, size, width, exists.shape[0])
    tl.store(places, values.to(x.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _put_sum(
    sums: tl.tensor, values: tl.tensor, stride: tl.tensor, head: tl.tensor, size: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    """Store the sums over a program's rows of a head, whose rows beyond the last token are zero."""
    columns = tl.arange(0, width)
    tl.store(sums + tl.program_id(0) * stride + head * size + columns, tl.sum(values, 0), mask=columns < size)


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
def _scores(
    products: tl.tensor, scale: tl.tensor, cap: tl.tensor, has_cap: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Turn products into scores, but for a factor, ``_unit``, that exponents apply in the same instruction."""
    if has_cap:  # cap · tanh(score / cap)
        products = 1.0 - 2.0 / (tl.exp2(products * (scale * 2.0 * _TO_BASE_2 / cap)) + 1.0)
    return products


@triton.jit  # type: ignore[untyped-decorator]
def _unit(scale: tl.tensor, cap: tl.tensor, has_cap: tl.constexpr) -> tl.tensor:
    """Return the factor of ``_scores`` that makes them scores to base 2."""
    return (cap if has_cap else scale) * _TO_BASE_2


@triton.jit  # type: ignore[untyped-decorator]
def _uncapped(
    of_scores: tl.tensor, scores: tl.tensor, has_cap: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Turn gradients of scores into those of products, but for their scale."""
    if has_cap:
        of_scores *= 1.0 - scores * scores
    return of_scores
