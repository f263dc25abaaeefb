"""Adam and AdamW for lists of tensors in one kernel, which also clips gradients and writes 16-bit copies of weights.

A program updates a chunk of one tensor; a table on the device has the tensors' addresses and sizes. Compared with
PyTorch's fused kernel, clipping needs no pass of its own, and the next step finds the copies that its products take.
"""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 1024
"""Elements of a program."""
_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit  # type: ignore[untyped-decorator]
def _adamw(
    table: tl.tensor, num_tensors: tl.tensor, step: tl.tensor, keep: tl.tensor, added: tl.tensor, beta1: tl.tensor,
    rest1: tl.tensor, beta2: tl.tensor, rest2: tl.tensor, unbiased: tl.tensor, epsilon: tl.tensor, factor: tl.tensor,
    narrow: tl.constexpr, most_tensors: tl.constexpr, size: tl.constexpr,
) -> None:  # fmt: skip
    """``table`` ``[7, num_tensors]``: first programs; sizes; weights, gradients, moments, copies or 0."""
    program, lanes = tl.program_id(0), tl.arange(0, most_tensors)
    firsts = tl.load(table + lanes, mask=lanes < num_tensors, other=9223372036854775807)
    own = table + tl.sum((firsts <= program).to(tl.int32), 0) - 1
    start = (program - tl.load(own)) * size
    places = tl.arange(0, size)
    exists = start + places < tl.multiple_of(tl.load(own + num_tensors), 4)
    wide: tl.constexpr = tl.pointer_type(tl.float32)
    weights = tl.multiple_of(tl.load(own + 2 * num_tensors).to(wide), 16) + start + places
    gradients = tl.multiple_of(tl.load(own + 3 * num_tensors).to(wide), 16) + start + places
    means = tl.multiple_of(tl.load(own + 4 * num_tensors).to(wide), 16) + start + places
    squares = tl.multiple_of(tl.load(own + 5 * num_tensors).to(wide), 16) + start + places
    weight = tl.load(weights, mask=exists, other=0.0)
    gradient = tl.load(gradients, mask=exists, other=0.0) * factor + added * weight
    mean = tl.load(means, mask=exists, other=0.0) * beta1 + rest1 * gradient
    square = tl.load(squares, mask=exists, other=0.0) * beta2 + rest2 * gradient * gradient
    weight = weight * keep - step * mean / (tl.sqrt(square) * unbiased + epsilon)
    tl.store(means, mean, mask=exists)
    tl.store(squares, square, mask=exists)
    tl.store(weights, weight, mask=exists)
    if narrow is not None:
        address = tl.load(own + 6 * num_tensors)
        copies = tl.multiple_of(address.to(tl.pointer_type(narrow)), 16) + start + places
        tl.store(copies, weight.to(narrow), mask=exists & (address != 0))


def adamw(
    lists: Sequence[Sequence[Tensor]], copies: Sequence[Tensor], numbers: Sequence[float], *, decoupled: bool
) -> None:
    """Update lists of tensors in place; see `hornbook.ops.triton.adamw_operators.triton_adamw`."""
    rate, decay, beta1, beta2, epsilon, t, factor = numbers
    sizes = [weight.numel() for weight in lists[0]]
    chunks = [triton.cdiv(size, CHUNK) for size in sizes]
    firsts = [sum(chunks[:number]) for number in range(len(chunks))]
    addresses = [[tensor.data_ptr() for tensor in tensors] for tensors in (*lists, copies)]
    addresses[-1] += [0] * (len(sizes) - len(copies))
    table = torch.tensor([firsts, sizes, *addresses], dtype=torch.int64).to(lists[0][0].device, non_blocking=True)
    keep, added = (1.0 - rate * decay, 0.0) if decoupled else (1.0, decay)
    step, unbiased = rate / (1.0 - beta1**t), 1.0 / math.sqrt(1.0 - beta2**t)
    values = (step, keep, added, beta1, 1.0 - beta1, beta2, 1.0 - beta2, unbiased, epsilon, factor)
    narrow = _TYPES[copies[0].dtype] if copies else None
    most = triton.next_power_of_2(len(sizes))
    if sum(chunks):
        _adamw[(sum(chunks),)](table, len(sizes), *values, narrow=narrow, most_tensors=most, size=CHUNK)
