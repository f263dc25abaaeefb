"""The products of a block-sparse matrix by native operators, in fp32, of activations in fp32 or bf16.

::

    x [N, C·b] --product--> y [N, R·b]             lines of blocks: rows
    dy ------- product--> dx                       columns, ``across``
    dy, x ---- weight gradient--> dvalues          the lines of the wider of the two; the other stays in the cache

A product packs its tokens itself, a slice that fits the cache at a time: it reads activations once and writes results
once, since most of the time that is left is that of memory. bf16 is widened where tokens are packed and rounded where
results are written: an Intel processor multiplies bf16 pairs at half the rate of floats. In a new run the newest form
that is right computes; forward products and gradients of the input are the same in all of them, bit for bit.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from hornbook.ops.native.build import BuildError
from hornbook.ops.native.kernels import BLOCKS, in_use
from hornbook.ops.native.library import PYTORCH, Form, Kernel, is_right, load
from hornbook.ops.native.operands import SUFFIXES, rows

BLOCK_SIZES = (4, 8, 16, 32, 64)


def form() -> Form | str:
    """Return the form that computes in this process, or why there is none; see ``Kernels.blocks``."""
    chosen, newest = in_use().blocks, newest_form()
    if chosen is None or isinstance(newest, str):
        return newest
    return "PyTorch computes this run" if chosen == PYTORCH else Form(chosen)


@functools.cache
def newest_form() -> Form | str:
    """Return the newest form that is right here, or why there is none; builds the library if it is not there."""
    built = load()
    if isinstance(built, BuildError):
        return str(built)
    return next((Form(isa) for isa in KERNEL.instruction_sets if is_right(KERNEL, isa)), "no native form is right here")


class Lines(NamedTuple):
    """The blocks of a matrix line by line: its rows, or its columns."""

    starts: Tensor
    """int64 ``[lines + 1]``: the first block of each line, and n."""
    others: Tensor
    """int64 ``[n]``: where along its line each block is, in the order of ``values``."""
    order: Tensor | None
    """int64 ``[n]``: the numbers of the blocks, line by line; None where that is their order."""
    across: bool
    """Whether lines are columns."""


def product(own: Form, x_NC: Tensor, values: Tensor, lines: Lines) -> Tensor:
    """Return ``x Wᵀ`` ``[N, R·b]`` for rows, ``x W`` ``[N, C·b]`` for columns, in the dtype of ``x``.

    Args:
        own: computes it.
        x_NC: the tokens, fp32 or bf16.
        values: blocks ``[n, b, b]``.
        lines: the outputs' lines.
    """
    x_NC, size, count = rows(x_NC), values.shape[-1], len(lines.starts) - 1
    y_NC = x_NC.new_empty(len(x_NC), count * size)
    own(
        f"block_sparse_product_{SUFFIXES[x_NC.dtype]}", x_NC, x_NC.stride(0), *x_NC.shape, values.float().contiguous(),
        lines.starts, lines.others, lines.order, count, size, lines.across, y_NC, torch.get_num_threads(),
    )  # fmt: skip
    return y_NC


def weight_gradient(own: Form, gradient_NC: Tensor, x_NC: Tensor, lines: Lines, size: int) -> Tensor:
    """Return the blocks ``[n, b, b]`` of ``dyᵀ x``, fp32.

    Args:
        own: computes it.
        gradient_NC: dy, ``[N, R·b]``, fp32 or bf16.
        x_NC: ``[N, C·b]``, of the same dtype.
        lines: rows or columns; faster are those of the wider of the two tensors.
        size: b.
    """
    along, others = map(rows, (x_NC, gradient_NC) if lines.across else (gradient_NC, x_NC))
    of_values = torch.empty(len(lines.others), size, size)
    own(
        f"block_sparse_weight_gradient_{SUFFIXES[x_NC.dtype]}", along, along.stride(0), others, others.stride(0),
        *others.shape, lines.starts, lines.others, lines.order, len(lines.starts) - 1, size, lines.across, of_values,
        torch.get_num_threads(),
    )  # fmt: skip
    return of_values


def _agrees(own: Form, _: torch.dtype) -> bool:
    return all(_is_right_in(own, dtype) for dtype in SUFFIXES)


def _is_right_in(own: Form, dtype: torch.dtype) -> bool:
    """Compare the products along rows and columns with PyTorch's in float64, on sizes that no slice divides."""
    random, tolerance = torch.Generator().manual_seed(0), 1e-4 if dtype == torch.float32 else 2e-2
    for size in (4, 16):
        x, g = (torch.randn(37, count * size, generator=random).to(dtype) for count in (3, 2))
        values = torch.randn(3, size, size, generator=random)
        at_rows, at_columns, order = torch.tensor([0, 0, 1]), torch.tensor([0, 2, 1]), torch.tensor([0, 2, 1])
        by_row = Lines(torch.tensor([0, 2, 3]), at_columns, None, across=False)
        by_column = Lines(torch.tensor([0, 1, 2, 3]), at_rows, order, across=True)
        dense = torch.zeros(2, 3, size, size, dtype=torch.float64)
        dense[at_rows, at_columns] = values.double()
        dense = dense.transpose(1, 2).reshape(2 * size, 3 * size)
        of_values = (g.double().t() @ x.double()).view(2, size, 3, size)[at_rows, :, at_columns]
        pairs = (
            (product(own, x, values, by_row), x.double() @ dense.t()),
            (product(own, g, values, by_column), g.double() @ dense),
            (weight_gradient(own, g, x, by_row, size), of_values),
            (weight_gradient(own, g, x, by_column, size), of_values),
        )
        if not all(torch.allclose(ours.double(), exact, rtol=tolerance, atol=tolerance) for ours, exact in pairs):
            return False
    return True


def _trial(own: Form | None, _: torch.dtype) -> None:
    """Do nothing: forms are taken by their width, not by their time."""


KERNEL = Kernel(BLOCKS, torch.float32, _agrees, _trial)
"""For activations of both dtypes."""
