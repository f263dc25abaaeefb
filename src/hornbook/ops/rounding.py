"""Stochastic rounding to 16 bits: up or down with probabilities that preserve the mean.

::

    fp32   1 10000010 0010000 0110000000000000
    + r    0 00000000 0000000 rrrrrrrrrrrrrrrr      r: 16 random bits, here a carry in 3/8 of all cases
    bf16   1 10000010 0010000 or 0010001

Rounding to nearest would lose updates smaller than half the distance to the next number; stochastic rounding applies
them with a small probability (Gupta et al. 2015). The random bits are a hash of a key and the index of the element in
the whole tensor, so they do not depend on resumes or on the ranks over which a tensor is split.
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hornbook.ops.dropout import mix

_SMALLEST_NORMAL = 2.0**-14
_DROPPED_BITS = {torch.bfloat16: 16, torch.float16: 13}


def round_stochastically(values: Tensor, dtype: torch.dtype, words: Tensor) -> Tensor:
    """Return fp32 ``values`` rounded to ``dtype``, bf16 or fp16; ``words`` are random int32 of the same shape.

    The mean over all words is the value itself, up to 2⁻³⁸ for fp16 below 2⁻¹⁴, and below the largest number.
    """
    if dtype == torch.bfloat16:
        return _cut(values, words, dtype).to(dtype)
    # fp16 below 2^-14 has the spacing of 2^-14 to 2^-13, so such values are shifted to that range and back
    offset = torch.where(values.abs() < _SMALLEST_NORMAL, torch.full_like(values, _SMALLEST_NORMAL), 0.0)
    offset = offset.copysign_(values)
    return _cut(values + offset, words, dtype).sub_(offset).to(dtype)


def random_words(
    key: str, begin: Sequence[int], shape: Sequence[int], whole: Sequence[int], device: torch.device
) -> Tensor:
    """Return random int32 ``shape``, a hash of ``key`` and the index of each element in the whole tensor.

    Args:
        key: any text.
        begin: offset of the part in the whole tensor.
        shape: of the part.
        whole: shape of the whole tensor.
        device: of the result.
    """
    digest = hashlib.sha256(key.encode()).digest()
    first, second = (int.from_bytes(digest[at : at + 4], "little", signed=True) for at in (0, 4))
    index = torch.full((1,) * len(shape), 0, dtype=torch.int32, device=device)
    for dimension, (start, size) in enumerate(zip(begin, shape, strict=True)):
        stride = math.prod(whole[dimension + 1 :])
        steps = torch.arange(start, start + size, device=device) * stride
        steps = ((steps + (1 << 31)) % (1 << 32) - (1 << 31)).to(torch.int32)  # wraps around like 32-bit words
        index = index + steps.view(-1, *[1] * (len(shape) - dimension - 1))
    return mix(mix(index ^ first) ^ second)


def _cut(values: Tensor, words: Tensor, dtype: torch.dtype) -> Tensor:
    """Return fp32 values with random bits added and the bits below the precision of ``dtype`` cleared."""
    mask = (1 << _DROPPED_BITS[dtype]) - 1
    return ((values.view(torch.int32) + (words & mask)) & ~mask).view(torch.float32)
