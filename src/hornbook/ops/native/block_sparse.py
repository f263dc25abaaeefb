"""Native products of block-sparse matrices with activations in fp32 or bf16, accumulated in fp32.

::

    x [N, C·b] --product--> y [N, R·b]             lines of blocks: rows; plus the bias
    dy ------- product--> dx                       columns, ``across``
    dy, x ---- weight gradient--> dvalues          lines of the wider tensor; the other stays in the cache

A product packs its tokens in slices that fit in the cache, so that it reads activations and writes results only once:
memory takes most of the remaining time. bf16 is converted to fp32 when tokens are packed, and rounded when results are
written, since Intel processors multiply bf16 pairs at half the rate of floats. The AMX form multiplies bf16 by tiles if
blocks are at least as large as tiles, and otherwise computes like the other forms.

A new run uses the newest correct form; the AMX form must also be faster than the next one. Forward products and
gradients of inputs are equal in all forms, bit for bit, except for tiles.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from hornbook.errors import UserError
from hornbook.ops.block_pattern import Pattern, from_dense, to_dense
from hornbook.ops.native.build import TILES
from hornbook.ops.native.cache import BuildError
from hornbook.ops.native.kernels import BLOCKS, PYTORCH, SUFFIXES, Form, in_use, load, rows
from hornbook.ops.native.trials import Kernel, is_right, seconds

BLOCK_SIZES = (4, 8, 16, 32, 64)
_SIZES_FOR_TILES = BLOCK_SIZES[2:]


def form() -> Form | str:
    """Return the form in use in this process, or the reason why there is none; see ``Kernels.blocks``."""
    chosen, newest = in_use().blocks, newest_form()
    if chosen is None or isinstance(newest, str):
        return newest
    return "PyTorch computes this run" if chosen == PYTORCH else Form(chosen)


@functools.cache
def newest_form() -> Form | str:
    """Return the newest correct form on this machine, or the reason why there is none; build the library if necessary.

    The speed of tiles has not been measured on hardware, so it is measured on this machine against the next form.
    """
    built = load()
    if isinstance(built, BuildError):
        return str(built)
    right = [isa for isa in KERNEL.instruction_sets if is_right(KERNEL, isa)]
    if right[:1] == [TILES]:
        right = sorted(right[:2], key=seconds(KERNEL).__getitem__)
    return Form(right[0]) if right else "no native form is right here"


def has_tiles(own: Form, size: int, dtype: torch.dtype) -> bool:
    """Return whether a form multiplies blocks of ``size`` and activations of ``dtype`` by AMX tiles."""
    return own.isa == TILES and size in _SIZES_FOR_TILES and dtype == torch.bfloat16


class Lines(NamedTuple):
    """The blocks of a matrix grouped by lines, which are its block rows or block columns."""

    starts: Tensor
    """int64 ``[lines + 1]``: the index of each line's first block, and n."""
    others: Tensor
    """int64 ``[n]``: the position of each block along its line, in the order of ``values``."""
    order: Tensor | None
    """int64 ``[n]``: the indices of the blocks, ordered by line; None if ``values`` have that order."""
    across: bool
    """Whether lines are columns."""

    @classmethod
    def rows(cls, pattern: Pattern) -> "Lines":
        """Return the rows of a matrix."""
        return cls(pattern.row_starts, pattern.columns, None, across=False)

    @classmethod
    def columns(cls, pattern: Pattern) -> "Lines":
        """Return the columns of a matrix."""
        return cls(pattern.column_starts, pattern.rows, pattern.column_order, across=True)


def product(own: Form, x_NC: Tensor, values: Tensor, lines: Lines, bias: Tensor | None = None) -> Tensor:
    """Return ``x Wᵀ`` ``[N, R·b]`` for rows, ``x W`` ``[N, C·b]`` for columns, in the dtype of ``x``.

    The bias is added as by another operator: product and bias are rounded to that dtype first.

    Args:
        own: the form.
        x_NC: the tokens, fp32 or bf16.
        values: blocks ``[n, b, b]``, rounded to the dtype of ``x``.
        lines: of the outputs.
        bias: of the outputs, of any floating dtype, or None.

    Raises:
        UserError: the lines are not those of a matrix of this size.
    """
    x_NC, size, count = rows(x_NC), values.shape[-1], len(lines.starts) - 1
    y_NC = x_NC.new_empty(len(x_NC), count * size)
    values = values.to(x_NC.dtype).contiguous()
    bias = None if bias is None else bias.float().contiguous()
    failed = own(
        f"block_sparse_product_{SUFFIXES[x_NC.dtype]}", x_NC, x_NC.stride(0), *x_NC.shape, values, len(values),
        lines.starts, lines.others, lines.order, count, size, lines.across, bias, y_NC,
        torch.get_num_threads(),
    )  # fmt: skip
    _refuse(failed)
    return y_NC


def weight_gradient(own: Form, gradient_NC: Tensor, x_NC: Tensor, lines: Lines, size: int) -> Tensor:
    """Return the blocks ``[n, b, b]`` of ``dyᵀ x``, fp32.

    Args:
        own: the form.
        gradient_NC: dy, ``[N, R·b]``, fp32 or bf16.
        x_NC: ``[N, C·b]``, of the same dtype.
        lines: rows or columns; those of the wider of the two tensors are faster.
        size: b.

    Raises:
        UserError: the lines are not those of a matrix of this size.
    """
    along, others = map(rows, (x_NC, gradient_NC) if lines.across else (gradient_NC, x_NC))
    of_values = torch.empty(len(lines.others), size, size)
    failed = own(
        f"block_sparse_weight_gradient_{SUFFIXES[x_NC.dtype]}", along, along.stride(0), others, others.stride(0),
        *others.shape, len(lines.others), lines.starts, lines.others, lines.order, len(lines.starts) - 1, size,
        lines.across, of_values, torch.get_num_threads(),
    )  # fmt: skip
    _refuse(failed)
    return of_values


def _refuse(failed: int) -> None:
    """Raise UserError if a product found indices of blocks outside of its operands."""
    if failed:
        raise UserError("the pattern of a block-sparse product does not fit its operands: check the positions")


def _agrees(own: Form, _: torch.dtype) -> bool:
    return all(_is_right_in(own, dtype) for dtype in SUFFIXES)


def _is_right_in(own: Form, dtype: torch.dtype) -> bool:
    """Compare the products along rows and columns with PyTorch's in float64, on sizes that no slice divides."""
    random, tolerance = torch.Generator().manual_seed(0), 1e-4 if dtype == torch.float32 else 2e-2
    at = torch.arange(7)
    filled = (at[:, None] == 1) | (at[:6] == 2)  # a row and a column; tiles take up to four blocks of a line at once
    for size in (4, 16, 32):
        pattern, values = _drawn_blocks(filled, size, dtype, random)
        x, g = (torch.randn(37, count * size, generator=random).to(dtype) for count in (6, 7))
        dense = to_dense(values.double(), pattern)
        of_values = from_dense(g.double().t() @ x.double(), pattern, size)
        by_row, by_column = Lines.rows(pattern), Lines.columns(pattern)
        pairs = (
            (product(own, x, values, by_row), x.double() @ dense.t()),
            (product(own, g, values, by_column), g.double() @ dense),
            (weight_gradient(own, g, x, by_row, size), of_values),
            (weight_gradient(own, g, x, by_column, size), of_values),
        )
        if not all(torch.allclose(ours.double(), exact, rtol=tolerance, atol=tolerance) for ours, exact in pairs):
            return False
    return True


def _drawn_blocks(filled: Tensor, size: int, dtype: torch.dtype, random: torch.Generator) -> tuple[Pattern, Tensor]:
    """Return the pattern of the true positions of ``filled``, and normally distributed blocks."""
    at, (num_rows, num_columns) = filled.flatten().nonzero().squeeze(1), filled.shape
    values = torch.randn(len(at), size, size, generator=random).to(dtype)
    return Pattern.of(at // num_columns, at % num_columns, num_rows, num_columns), values


@functools.cache
def _trial_operands() -> tuple[Tensor, Pattern, Tensor]:
    random = torch.Generator().manual_seed(0)
    filled = torch.rand(24, 24, generator=random) < 0.1
    return torch.ones(256, 24 * 16).bfloat16(), *_drawn_blocks(filled, 16, torch.bfloat16, random)


def _trial(own: Form | None, _: torch.dtype) -> None:
    """Compute all products with the block size that gains least by tiles; PyTorch's time is not used."""
    x, pattern, values = _trial_operands()
    if own is not None:
        product(own, x, values, Lines.rows(pattern))
        product(own, x, values, Lines.columns(pattern))
        weight_gradient(own, x, x, Lines.rows(pattern), 16)


KERNEL = Kernel(BLOCKS, torch.float32, _agrees, _trial, special=(TILES,))
"""For activations of both dtypes."""
