"""Index maps that arrange the sequences of a batch in groups for attention and in a column for convolutions.

Attention needs a batch of sequences, ``[G, t]``; other layers process flat tokens. So sequences of similar length form
a group, and the groups are concatenated as R rows::

    tokens    aaaaa bbb cccc .. dd        lengths 5 3 4 2, two tokens of padding
    groups    aaaaa                       [G=2, t=5]: a, c
              cccc.
              bbb                         [G=2, t=3]: b, d
              dd.

``gather_index`` ``[R]`` has the token of each row, ``scatter_index`` ``[B·T]`` the row of each token, -1 for none. They
are inverse to each other, so that the gradient of one gather is the other gather, without sums. Each layer copies all
tokens twice, which takes a few percent of its time.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.parallel.device import copied_to

_COARSE = 16
"""On a CPU, sequences are not grouped if their lengths differ by more tokens than this and by more than an eighth."""


class GroupSize(NamedTuple):
    """The size of a group."""

    num_sequences: int
    length: int
    is_padded: bool


class SequenceGroups(TypedDict, total=False):
    """The groups of a micro-batch for attention; the last three entries are absent if every row is one sequence."""

    group_sizes: list[GroupSize]
    gather_index: Tensor
    """int64 ``[R]``: the flat token of each row of the groups, -1 for padding."""
    scatter_index: Tensor
    """int64 ``[B·T]``: the row of each flat token, -1 for padding."""
    is_token: Tensor
    """bool ``[R]``: False for padding."""


def group_sequences(firsts_S: Tensor, lengths_S: Tensor, shape: torch.Size, device: torch.device) -> SequenceGroups:
    """Return the groups of the sequences of a micro-batch.

    Args:
        firsts_S: flat index of each sequence's first token, in host memory.
        lengths_S: number of tokens of each sequence, in host memory; empty sequences are omitted.
        shape: of the tokens, (B, T).
        device: of the index maps.
    """
    lengths, firsts = lengths_S.tolist(), firsts_S.tolist()
    if lengths == [shape[1]] * shape[0] and firsts == list(range(0, shape.numel(), shape[1])):
        return {"group_sizes": [GroupSize(shape[0], shape[1], is_padded=False)]}
    order = sorted((number for number, length in enumerate(lengths) if length), key=lambda number: -lengths[number])
    sizes, indices = [], [torch.empty(0, dtype=torch.int64)]
    for members in _cut(order, lengths, is_coarse=device.type != "cpu"):
        steps = torch.arange(lengths[members[0]])
        of_group = torch.tensor([firsts[number] for number in members]).unsqueeze(1) + steps
        is_padding = steps >= torch.tensor([lengths[number] for number in members]).unsqueeze(1)
        sizes.append(GroupSize(len(members), len(steps), bool(is_padding.any())))
        indices.append(of_group.masked_fill_(is_padding, -1).flatten())
    index_R = torch.cat(indices)
    return {
        "group_sizes": sizes,
        "gather_index": copied_to(device, index_R),
        "scatter_index": copied_to(device, inverse(index_R, shape.numel())),
        "is_token": copied_to(device, index_R >= 0),
    }


class SpacedSequences(TypedDict, total=False):
    """The sequences of a micro-batch as one column of R rows, with gaps between them, for convolutions."""

    column_gather_index: Tensor
    """int64 ``[R]``: the flat token of each row of the column, -1 for an empty row."""
    column_scatter_index: Tensor
    """int64 ``[B·T]``: the row of each flat token, -1 for padding."""


def space_sequences(
    firsts_S: Tensor, lengths_S: Tensor, num_tokens: int, gap: int, device: torch.device
) -> SpacedSequences:
    """Return the column of all sequences with ``gap`` empty rows before and after each of them.

    Args:
        firsts_S: flat index of each sequence's first token, in host memory.
        lengths_S: number of tokens of each sequence, in host memory.
        num_tokens: B·T.
        gap: empty rows between two sequences.
        device: of the index maps.
    """
    empty = torch.full((gap,), -1)
    parts = [empty]
    for first, length in zip(firsts_S.tolist(), lengths_S.tolist(), strict=True):
        parts += [torch.arange(first, first + length), empty]
    index_R = torch.cat(parts)
    return {
        "column_gather_index": copied_to(device, index_R),
        "column_scatter_index": copied_to(device, inverse(index_R, num_tokens)),
    }


def convolve(x_ND: Tensor, weight: Tensor, bias_D: Tensor, gather_index_R: Tensor, scatter_index_N: Tensor) -> Tensor:
    """Return a grouped convolution over the tokens of each sequence, ``[N, D]`` in the dtype of ``x``.

    Sequences are padded with zeros: one convolution runs over the column of `space_sequences`, whose gap is half the
    kernel. All tokens are copied there and back, with at most ``kernel_size - 1`` more rows per sequence.

    Args:
        x_ND: flat tokens.
        weight: ``[D, channels of a group, kernel_size]`` fp32, with an odd kernel size.
        bias_D: fp32.
        gather_index_R: ``column_gather_index``.
        scatter_index_N: ``column_scatter_index``.
    """
    _, group_size, kernel_size = weight.shape
    filters, bias_D = weight.to(x_ND.dtype), bias_D.to(x_ND.dtype)
    column_1DR = take(x_ND, gather_index_R, scatter_index_N).t().unsqueeze(0)
    groups = x_ND.shape[1] // group_size
    mixed_1DR = functional.conv1d(column_1DR, filters, bias_D, padding=kernel_size // 2, groups=groups)
    return take(mixed_1DR.squeeze(0).t(), scatter_index_N, gather_index_R)


def inverse(index_M: Tensor, num_rows: int) -> Tensor:
    """Return the position in ``index`` of each row below ``num_rows``, -1 if absent; -1 in ``index`` is ignored."""
    found = torch.full((num_rows + 1,), -1, dtype=torch.int64)
    found[index_M] = torch.arange(len(index_M))
    return found[:num_rows]


def take(x_RC: Tensor, index_M: Tensor, inverse_R: Tensor) -> Tensor:
    """Return the rows ``index`` of ``x``, ``[M, C]``, with zeros for -1.

    Args:
        x_RC: rows.
        index_M: int64, row numbers without duplicates except for -1.
        inverse_R: ``inverse(index_M, R)``, used for the gradient.
    """
    y_MC: Tensor = _Take.apply(x_RC, index_M, inverse_R)  # type: ignore[no-untyped-call]
    return y_MC


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RC: Tensor, index_M: Tensor, inverse_R: Tensor) -> Tensor:
        ctx.save_for_backward(index_M, inverse_R)
        return _gather(x_RC, index_M)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        _, inverse_R = ctx.saved_tensors
        return _gather(gradients[0], inverse_R), None, None


def _gather(x_RC: Tensor, index_M: Tensor) -> Tensor:
    if not len(x_RC):
        return x_RC.new_zeros(len(index_M), x_RC.shape[1])
    return x_RC.index_select(0, index_M.clamp(min=0)).masked_fill_((index_M < 0).unsqueeze(1), 0.0)


def _cut(order: list[int], lengths: list[int], *, is_coarse: bool) -> Iterator[list[int]]:
    """Yield groups of sequences, given longest first; a coarse device is fastest with few large products."""
    members: list[int] = []
    for number in order:
        longest = lengths[members[0]] if members else 0
        if members and not is_coarse and longest - lengths[number] > max(_COARSE, longest // 8):
            yield members
            members = []
        members.append(number)
    if members:
        yield members
