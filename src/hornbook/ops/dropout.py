"""Dropout without a random state: a hash of the token's key, the site and the column decides about each element.

Every token of a batch has a key, a function of (seed, sample, position); every dropout of the model has a site number.
An element is dropped if ``hash(key, site, column) < p``::

    keys_BT  --+ site--> mix -->  [B, T, 1] + columns --> mix --> [B, T, D] < p ?

So packing, micro-batching, recomputation and resuming do not change dropout, and no mask is stored: the backward pass
recomputes it. The mixer is the 32-bit ``lowbias32`` of the hash-prospector project (Wellons 2018).
"""

from typing import Any

import torch
from torch import Tensor

from hornbook.ops.triton.operators import chosen, triton_dropout

_GOLDEN = 0x9E3779B1 - (1 << 32)
_FIRST = 0x7FEB352D
_SECOND = 0x846CA68B - (1 << 32)


def mix(x: Tensor) -> Tensor:
    """Scramble int32 values of any shape in place; a bijection of 32-bit words."""
    scratch = torch.empty_like(x)
    _fold(x, 16, scratch).mul_(_FIRST)
    _fold(x, 15, scratch).mul_(_SECOND)
    return _fold(x, 16, scratch)


def _fold(x: Tensor, shift: int, scratch: Tensor) -> Tensor:
    """Compute ``x ^= x >> shift`` of unsigned words in place; reusing ``scratch`` keeps it in the cache."""
    torch.bitwise_right_shift(x, shift, out=scratch)
    scratch &= (1 << (32 - shift)) - 1
    x ^= scratch
    return x


def keep_mask(keys: Tensor, site: int, num_columns: int, probability: float) -> Tensor:
    """Return the mask of the elements to keep.

    Args:
        keys: ``[...]`` int64 in [0, 2³²), one per token.
        site: number of the dropout layer in the model.
        num_columns: size of the new last dimension.
        probability: share of elements to drop, in [0, 1).

    Returns:
        ``[..., num_columns]`` bool.
    """
    keys_int32 = torch.where(keys >= 1 << 31, keys - (1 << 32), keys).to(torch.int32)
    token = mix(keys_int32 ^ mix(torch.full_like(keys, site + 1, dtype=torch.int32)))
    columns = torch.arange(num_columns, dtype=torch.int32, device=keys.device) * _GOLDEN
    hashed = mix(token.unsqueeze(-1) + columns)
    hashed &= 0x7FFFFFFF
    return hashed >= int(probability * (1 << 31))


def dropout(x: Tensor, keys: Tensor, site: int, probability: float) -> Tensor:
    """Return ``x`` ``[..., C]`` with elements dropped and the others scaled (inverted dropout, Srivastava et al. 2014).

    Args:
        x: of any floating dtype.
        keys: ``[...]`` int64 in [0, 2³²), one per token.
        site: number of the dropout layer in the model.
        probability: share of elements to drop, in [0, 1).
    """
    if x.is_cuda and chosen("triton_dropout", x):
        fused: Tensor = triton_dropout(x, None, keys, site, probability)
        return fused
    result: Tensor = _HashedDropout.apply(x, keys, site, probability)  # type: ignore[no-untyped-call]
    return result


class _HashedDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, site: int, probability: float) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.site, ctx.probability = site, probability
        return _drop(x, keys, site, probability)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (keys,) = ctx.saved_tensors
        return _drop(gradients[0], keys, ctx.site, ctx.probability), None, None, None


def _drop(x: Tensor, keys: Tensor, site: int, probability: float) -> Tensor:
    return (x * keep_mask(keys, site, x.shape[-1], probability)).mul_(1.0 / (1.0 - probability))
