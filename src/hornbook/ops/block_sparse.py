"""A linear map whose matrix is zero but for square blocks: forward, gradient of the input, gradient of the blocks.

::

    W [R·b, C·b]:  W[rows[i]·b : rows[i]·b + b, columns[i]·b : columns[i]·b + b] = values[i]

    y  = x Wᵀ        [N, R·b]          dvalues[i] = (dyᵀ x) at block i, and nowhere else
    dx = dy W        [N, C·b]

Three kernels compute the three products. ``reference`` makes a dense matrix of the blocks and multiplies it: any device
and dtype, and the dense time. ``torch`` takes one row or column of blocks at a time: tokens lie along the last
dimension, ``[C, b, N]``, so that the inputs that a row of k blocks needs are gathered as whole rows of memory, and one
product ``[N, k·b] · [k·b, b]`` computes its output. ``native`` is C++ for fp32 and bf16
(`hornbook.ops.native.block_sparse`).

On demand the backward pass also makes the dense gradient ``dyᵀ x`` of one layer, and adds up its absolute values block
by block: the scores by which RigL grows new blocks (Evci et al. 2020).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hornbook.errors import UserError
from hornbook.ops.native import block_sparse as native
from hornbook.ops.native.library import Form
from hornbook.ops.native.operands import SUFFIXES

_DENSEST: Final = {16: 0.125, 32: 0.2, 64: 0.25}
"""Block size -> density up to which the products of the blocks took less time than dense ones on a CPU."""

_DENSEST_NATIVE: Final = 0.4
"""The same of the native kernel, for any size."""


_NATIVE_SIZES: Final = f"{', '.join(map(str, native.BLOCK_SIZES[:-1]))} or {native.BLOCK_SIZES[-1]}"


class Line(NamedTuple):
    """The blocks of one row of blocks, or of one column."""

    number: int
    """Of the row or column."""
    blocks: slice | Tensor
    """Which blocks they are."""
    others: Tensor
    """int64 ``[k]``: the column of each block of a row, the row of each block of a column."""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Where the blocks of a matrix of ``num_rows`` x ``num_columns`` blocks are, and what kernels derive of that.

    ``rows`` and ``columns`` are int64 ``[n]``, in the order of rows, then columns.
    """

    rows: Tensor
    columns: Tensor
    num_rows: int
    num_columns: int
    row_lines: native.Lines
    """The blocks row by row, as the native kernel reads them."""
    column_lines: native.Lines
    """Likewise, column by column."""

    @classmethod
    def of(cls, rows: Tensor, columns: Tensor, num_rows: int, num_columns: int) -> "Pattern":
        """Return the pattern of blocks at ``rows`` and ``columns``, integers ``[n]``, sorted by row, then column."""
        rows, columns = rows.long(), columns.long()
        order = torch.argsort(columns, stable=True)
        row_starts, column_starts = _starts(rows, num_rows), _starts(columns, num_columns)
        return cls(
            rows=rows,
            columns=columns,
            num_rows=num_rows,
            num_columns=num_columns,
            row_lines=native.Lines(row_starts, columns, torch.arange(len(rows), device=rows.device), across=False),
            column_lines=native.Lines(column_starts, rows[order], order, across=True),
        )

    @cached_property
    def by_row(self) -> tuple[Line, ...]:
        """The rows that have blocks, for the torch kernel."""
        return tuple(Line(row, slice(*ends), self.columns[slice(*ends)]) for row, ends in _runs(self.row_lines.starts))

    @cached_property
    def by_column(self) -> tuple[Line, ...]:
        """Likewise the columns."""
        lines = self.column_lines
        return tuple(
            Line(column, lines.places[slice(*ends)], lines.others[slice(*ends)]) for column, ends in _runs(lines.starts)
        )


def _starts(numbers: Tensor, count: int) -> Tensor:
    """Return how many of ``numbers`` are below each of 0 … ``count``, int64 ``[count + 1]``."""
    return functional.pad(torch.bincount(numbers, minlength=count).cumsum(0), (1, 0))


def _runs(starts: Tensor) -> list[tuple[int, tuple[int, int]]]:
    """Return the number and the two ends of each run that is not empty."""
    ends = starts.tolist()
    return [(number, (first, last)) for number, (first, last) in enumerate(pairwise(ends)) if last > first]


class Kernel(NamedTuple):
    """A form of the three products; matrices of tokens are ``[N, features]``, blocks ``[n, b, b]``, of one dtype."""

    arrange: Callable[[Tensor], Tensor]
    """x -> x, laid out in memory as the products read it"""
    forward: Callable[[Tensor, Tensor, Pattern], Tensor]
    """(x, values, pattern) -> y"""
    input_gradient: Callable[[Tensor, Tensor, Pattern], Tensor]
    """(dy, values, pattern) -> dx"""
    weight_gradient: Callable[[Tensor, Tensor, Pattern, int], Tensor]
    """(dy, x, pattern, b) -> dvalues"""


def to_dense(values: Tensor, pattern: Pattern) -> Tensor:
    """Return the matrix ``[R·b, C·b]`` of blocks ``[n, b, b]``."""
    size = values.shape[-1]
    grid = values.new_zeros(pattern.num_rows, pattern.num_columns, size, size)
    grid[pattern.rows, pattern.columns] = values
    return grid.transpose(1, 2).reshape(pattern.num_rows * size, pattern.num_columns * size)


def from_dense(matrix: Tensor, pattern: Pattern, size: int) -> Tensor:
    """Return the blocks ``[n, size, size]`` of a matrix ``[R·size, C·size]``."""
    grid = matrix.view(pattern.num_rows, size, pattern.num_columns, size)
    return grid[pattern.rows, :, pattern.columns]


def _reference_forward(x_NC: Tensor, values: Tensor, pattern: Pattern) -> Tensor:
    return x_NC @ to_dense(values, pattern).t()


def _reference_input_gradient(gradient_NC: Tensor, values: Tensor, pattern: Pattern) -> Tensor:
    return gradient_NC @ to_dense(values, pattern)


def _reference_weight_gradient(gradient_NC: Tensor, x_NC: Tensor, pattern: Pattern, size: int) -> Tensor:
    return from_dense(gradient_NC.t() @ x_NC, pattern, size)


def _by_rows_forward(x_NC: Tensor, values: Tensor, pattern: Pattern) -> Tensor:
    size, num_tokens = values.shape[-1], len(x_NC)
    x = _feature_major(x_NC, pattern.num_columns)
    y_NC = x_NC.new_zeros(num_tokens, pattern.num_rows * size)
    for row, blocks, columns in pattern.by_row:
        weights = values[blocks].transpose(0, 1).reshape(size, -1)
        gathered = x.index_select(0, columns).flatten(0, 1)
        torch.mm(gathered.t(), weights.t(), out=y_NC[:, row * size : (row + 1) * size])
    return y_NC


def _by_columns_input_gradient(gradient_NC: Tensor, values: Tensor, pattern: Pattern) -> Tensor:
    size, num_tokens = values.shape[-1], len(gradient_NC)
    gradient = _feature_major(gradient_NC, pattern.num_rows)
    result_NC = gradient_NC.new_zeros(num_tokens, pattern.num_columns * size)
    for column, blocks, rows in pattern.by_column:
        gathered = gradient.index_select(0, rows).flatten(0, 1)
        weights = values[blocks].view(-1, size)
        torch.mm(gathered.t(), weights, out=result_NC[:, column * size : (column + 1) * size])
    return result_NC


def _by_rows_weight_gradient(gradient_NC: Tensor, x_NC: Tensor, pattern: Pattern, size: int) -> Tensor:
    x, result = _feature_major(x_NC, pattern.num_columns), x_NC.new_zeros(len(pattern.rows), size, size)
    for row, blocks, columns in pattern.by_row:
        gathered = x.index_select(0, columns).flatten(0, 1)
        product = gradient_NC[:, row * size : (row + 1) * size].t() @ gathered.t()
        result[blocks] = product.view(size, -1, size).transpose(0, 1)
    return result


def _native_forward(x_NC: Tensor, values: Tensor, pattern: Pattern) -> Tensor:
    return native.product(_native_form(), x_NC, values, pattern.row_lines)


def _native_input_gradient(gradient_NC: Tensor, values: Tensor, pattern: Pattern) -> Tensor:
    return native.product(_native_form(), gradient_NC, values, pattern.column_lines)


def _native_weight_gradient(gradient_NC: Tensor, x_NC: Tensor, pattern: Pattern, size: int) -> Tensor:
    lines = pattern.row_lines if gradient_NC.shape[1] >= x_NC.shape[1] else pattern.column_lines
    return native.weight_gradient(_native_form(), gradient_NC, x_NC, lines, size).to(x_NC.dtype)


def _native_form() -> Form:
    form = native.form()
    assert isinstance(form, Form), "whoever chose the kernel has asked"
    return form


def _feature_major(x_NC: Tensor, num_blocks: int) -> Tensor:
    """Return ``[N, blocks·b]`` as ``[blocks, b, N]``, contiguous; a copy unless it lies so in memory."""
    size = x_NC.shape[1] // num_blocks
    return x_NC.t().contiguous().view(num_blocks, size, len(x_NC))


KERNELS: Final[dict[str, Kernel]] = {
    "reference": Kernel(lambda x_NC: x_NC, _reference_forward, _reference_input_gradient, _reference_weight_gradient),
    "torch": Kernel(
        lambda x_NC: x_NC.t().contiguous().t(), _by_rows_forward, _by_columns_input_gradient, _by_rows_weight_gradient
    ),
    "native": Kernel(lambda x_NC: x_NC, _native_forward, _native_input_gradient, _native_weight_gradient),
}
"""By name; ``native`` takes blocks of 4 and more, and activations in fp32 or bf16."""


class Choice(NamedTuple):
    """The kernel that computes a matrix, and why."""

    kernel: str
    reason: str


def choose_kernel(asked: str, block_size: int, density: float, device: torch.device) -> Choice:
    """Return the kernel for a matrix: the one that is asked for, or for ``auto`` the one that should be faster.

    Args:
        asked: ``auto`` or a name of ``KERNELS``.
        block_size: b.
        density: share of the blocks that exist.
        device: of the blocks.

    Raises:
        UserError: the native kernel is asked for, and cannot be built, is not right here or takes no such blocks.
    """
    if device.type != "cpu" and asked in ("auto", "native"):
        return Choice("reference", f"no other is for {device.type}")
    if asked == "native" and block_size not in native.BLOCK_SIZES:
        raise UserError(f"the native kernel needs blocks of {_NATIVE_SIZES}, not of {block_size}; set another kernel")
    if asked == "native" and isinstance(native.form(), str):
        raise UserError(f'sparsity.kernel = "native" cannot compute here: {native.form()}; set it to "auto"')
    if asked != "auto":
        return Choice(asked, "as asked")
    if density <= _DENSEST_NATIVE and block_size in native.BLOCK_SIZES and not isinstance(native.form(), str):
        return Choice("native", f"blocks of {block_size} at a density of at most {_DENSEST_NATIVE:g}")
    densest = _DENSEST.get(block_size, 0.0)
    if density <= densest:
        return Choice("torch", f"blocks of {block_size} at a density of at most {densest:g}")
    return Choice("reference", f"dense products are faster for blocks of {block_size} at a density of {density:.2g}")


class Scores:
    """Adds up the pooled absolute dense gradients of a matrix over micro-batches.

    Args:
        pattern: gives the numbers of rows and columns.
        pooling: ``sum``, ``avg`` or ``max`` of the absolute gradients of a block's weights.
    """

    def __init__(self, pattern: Pattern, pooling: str) -> None:
        self.pooling = pooling
        shape = (pattern.num_rows, pattern.num_columns)
        self.total = torch.zeros(shape, dtype=torch.float64, device=pattern.rows.device)
        """float64 ``[R, C]``, so that the order of the micro-batches hardly ever matters."""

    def add(self, gradient_NC: Tensor, x_NC: Tensor) -> None:
        """Add a micro-batch's: its gradient of the output ``[N, R·b]``, and its input ``[N, C·b]``."""
        num_rows, num_columns = self.total.shape
        dense = (gradient_NC.t() @ x_NC).abs_().float()
        grid = dense.view(num_rows, len(dense) // num_rows, num_columns, -1)
        # rows first: the sum of whole lines of memory takes a third of the time of one over both dimensions
        pools: dict[str, Callable[[Tensor], Tensor]] = {
            "sum": lambda grid: grid.sum(1).sum(-1),
            "avg": lambda grid: grid.mean(1).mean(-1),
            "max": lambda grid: grid.amax(1).amax(-1),
        }
        self.total += pools[self.pooling](grid)


def block_sparse_linear(
    x: Tensor, values: Tensor, pattern: Pattern, kernel: str, scores: Scores | None = None
) -> Tensor:
    """Return ``x Wᵀ`` ``[..., R·b]`` for a matrix of blocks.

    Args:
        x: ``[..., C·b]``, of any floating dtype.
        values: ``[n, b, b]``, in the order of ``pattern``; fp32, with an fp32 gradient, or of the dtype of ``x``.
        pattern: where the blocks are.
        kernel: a name of ``KERNELS``.
        scores: gets the pooled dense gradients of the backward passes; None where nobody asks for them.
    """
    if kernel == "native" and x.dtype not in SUFFIXES:
        kernel = "reference"
    rows = x.reshape(-1, x.shape[-1])
    y: Tensor = _BlockSparse.apply(rows, values.to(x.dtype), pattern, KERNELS[kernel], scores)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], y.shape[-1])


class _BlockSparse(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_NC: Tensor, values: Tensor, pattern: Pattern, kernel: Kernel, scores: Scores | None
    ) -> Tensor:
        x_NC = kernel.arrange(x_NC)
        ctx.save_for_backward(x_NC, values)
        ctx.pattern, ctx.kernel, ctx.scores = pattern, kernel, scores
        return kernel.forward(x_NC, values, pattern)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_NC: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        x_NC, values = ctx.saved_tensors
        of_x = ctx.kernel.input_gradient(gradient_NC, values, ctx.pattern) if ctx.needs_input_grad[0] else None
        of_values = None
        if ctx.needs_input_grad[1]:
            of_values = ctx.kernel.weight_gradient(gradient_NC, x_NC, ctx.pattern, values.shape[-1])
            if ctx.scores is not None:
                ctx.scores.add(gradient_NC, x_NC)
        return of_x, of_values, None, None, None
