"""Block-sparse linear layers: forward product, gradient of the input, gradient of the blocks.

::

    W [R·b, C·b]:  W[rows[i]·b : rows[i]·b + b, columns[i]·b : columns[i]·b + b] = values[i]

    y  = x Wᵀ        [N, R·b]          dvalues[i] = (dyᵀ x) at block i only
    dx = dy W        [N, C·b]

Four kernels compute the three products. ``reference`` multiplies a dense matrix made from the blocks, on any device, in
any dtype and in the time of a dense layer. ``torch`` processes one block row or column at a time: tokens are along the
last dimension, ``[C, b, N]``, so that the inputs of a row of k blocks are gathered as whole rows of memory, and one
product ``[N, k·b] · [k·b, b]`` computes its output. ``native`` is C++ for fp32 and bf16
(`hornbook.ops.native.block_sparse`), and ``triton`` is for GPUs (`hornbook.ops.triton.block_sparse`).

The products are operators of ``torch.library``, ``hornbook::block_sparse_product`` and its two gradients, so that
``torch.compile`` and the meta device support them.

On demand, the backward pass also computes the dense gradient ``dyᵀ x`` of a layer, and sums its absolute values by
blocks: the scores by which RigL grows new blocks (Evci et al. 2020).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from hornbook.errors import UserError
from hornbook.ops.block_pattern import Pattern, from_dense, to_dense
from hornbook.ops.native import block_sparse as native
from hornbook.ops.native.kernels import SUFFIXES, Form, form_of
from hornbook.ops.native.linear import linear_weight_gradient
from hornbook.ops.operators import operator, shapes_of
from hornbook.ops.triton.programs import why_not as why_not_triton
from hornbook.parallel.device import dtype_name
from hornbook.storage.system import cpu_flags


class _Densest(NamedTuple):
    """Maximum densities at which block products are faster than dense products of the same dtype on a CPU."""

    native: float
    """For any block size, computed by vectors."""
    torch: Mapping[int, float]
    """By block size."""


_DENSEST_FP32: Final = _Densest(0.4, {16: 0.125, 32: 0.2, 64: 0.25, 128: 0.25})
_DENSEST_BF16: Final = _Densest(0.4, {8: 0.1, 16: 0.25, 32: 0.25, 64: 0.25, 128: 0.25})
_DENSEST_WITH_AMX: Final = _Densest(0.1, {32: 0.1, 64: 0.2, 128: 0.2})
"""In bf16: dense products are some six times as fast there as in fp32, in which vectors multiply."""
_DENSEST_ON_GPU: Final = {16: 0.12, 32: 0.23, 64: 0.41, 128: 0.54}
"""By block size, for Triton on a GPU, in any dtype. An estimate from the traffic of the second-level cache, which lets
tiles of these blocks reach 7.9, 15, 27 and 36 % of an H100's dense peak, and dense products 66 %."""
_DENSEST_WITH_TILES: Final = 0.25
"""For the native kernel if it uses tiles like dense products. An estimate: it has not run on hardware."""


class Kernel(NamedTuple):
    """A form of the three products; matrices of tokens are ``[N, features]``, blocks ``[n, b, b]``, of one dtype."""

    arrange: Callable[[Tensor], Tensor]
    """x -> x, in the memory layout of the products"""
    forward: Callable[[Tensor, Tensor, Pattern, Tensor | None], Tensor]
    """(x, values, pattern, bias or None) -> y"""
    input_gradient: Callable[[Tensor, Tensor, Pattern], Tensor]
    """(dy, values, pattern) -> dx"""
    weight_gradient: Callable[[Tensor, Tensor, Pattern, int], Tensor]
    """(dy, x, pattern, b) -> dvalues"""


def _plus(y_NC: Tensor, bias: Tensor | None) -> Tensor:
    return y_NC if bias is None else y_NC + bias.to(y_NC.dtype)


def _by_rows_forward(x_NC: Tensor, values: Tensor, pattern: Pattern, bias: Tensor | None) -> Tensor:
    size, num_tokens = values.shape[-1], len(x_NC)
    x = _feature_major(x_NC, pattern.num_columns)
    y_NC = x_NC.new_zeros(num_tokens, pattern.num_rows * size)
    for row, blocks, columns in pattern.by_row():
        weights = values[blocks].transpose(0, 1).reshape(size, -1)
        gathered = x.index_select(0, columns).flatten(0, 1)
        torch.mm(gathered.t(), weights.t(), out=y_NC[:, row * size : (row + 1) * size])
    return _plus(y_NC, bias)


def _by_columns_input_gradient(gradient_NC: Tensor, values: Tensor, pattern: Pattern) -> Tensor:
    size, num_tokens = values.shape[-1], len(gradient_NC)
    gradient = _feature_major(gradient_NC, pattern.num_rows)
    result_NC = gradient_NC.new_zeros(num_tokens, pattern.num_columns * size)
    for column, blocks, rows in pattern.by_column():
        gathered = gradient.index_select(0, rows).flatten(0, 1)
        weights = values[blocks].view(-1, size)
        torch.mm(gathered.t(), weights, out=result_NC[:, column * size : (column + 1) * size])
    return result_NC


def _by_rows_weight_gradient(gradient_NC: Tensor, x_NC: Tensor, pattern: Pattern, size: int) -> Tensor:
    x, result = _feature_major(x_NC, pattern.num_columns), x_NC.new_zeros(len(pattern.rows), size, size)
    for row, blocks, columns in pattern.by_row():
        gathered = x.index_select(0, columns).flatten(0, 1)
        product = gradient_NC[:, row * size : (row + 1) * size].t() @ gathered.t()
        result[blocks] = product.view(size, -1, size).transpose(0, 1)
    return result


def _native_forward(x_NC: Tensor, values: Tensor, pattern: Pattern, bias: Tensor | None) -> Tensor:
    return native.product(_native_form(), x_NC, values, native.Lines.rows(pattern), bias)


def _native_input_gradient(gradient_NC: Tensor, values: Tensor, pattern: Pattern) -> Tensor:
    return native.product(_native_form(), gradient_NC, values, native.Lines.columns(pattern))


def _native_weight_gradient(gradient_NC: Tensor, x_NC: Tensor, pattern: Pattern, size: int) -> Tensor:
    lines = (native.Lines.rows if gradient_NC.shape[1] >= x_NC.shape[1] else native.Lines.columns)(pattern)
    return native.weight_gradient(_native_form(), gradient_NC, x_NC, lines, size).to(x_NC.dtype)


def _triton_forward(x_NC: Tensor, values: Tensor, pattern: Pattern, bias: Tensor | None) -> Tensor:
    from hornbook.ops.triton.block_sparse import product

    return _plus(product(x_NC, values, pattern.row_starts, pattern.columns), bias)


def _triton_input_gradient(gradient_NC: Tensor, values: Tensor, pattern: Pattern) -> Tensor:
    from hornbook.ops.triton.block_sparse import product

    return product(gradient_NC, values, pattern.column_starts, pattern.rows, pattern.column_order)


def _triton_weight_gradient(gradient_NC: Tensor, x_NC: Tensor, pattern: Pattern, size: int) -> Tensor:
    from hornbook.ops.triton.block_sparse import weight_gradient

    return weight_gradient(gradient_NC, x_NC, pattern.row_starts, pattern.columns, size)


def _native_form() -> Form:
    form = native.form()
    assert isinstance(form, Form), "whoever chose the kernel has asked"
    return form


def _feature_major(x_NC: Tensor, num_blocks: int) -> Tensor:
    """Return ``[N, blocks·b]`` as contiguous ``[blocks, b, N]``, a view if possible."""
    size = x_NC.shape[1] // num_blocks
    return x_NC.t().contiguous().view(num_blocks, size, len(x_NC))


KERNELS: Final[dict[str, Kernel]] = {
    "reference": Kernel(
        lambda x_NC: x_NC,
        lambda x_NC, values, pattern, bias: _plus(x_NC @ to_dense(values, pattern).t(), bias),
        lambda gradient_NC, values, pattern: gradient_NC @ to_dense(values, pattern),
        lambda gradient_NC, x_NC, pattern, size: from_dense(gradient_NC.t() @ x_NC, pattern, size),
    ),
    "torch": Kernel(
        lambda x_NC: x_NC.t().contiguous().t(), _by_rows_forward, _by_columns_input_gradient, _by_rows_weight_gradient
    ),
    "native": Kernel(lambda x_NC: x_NC, _native_forward, _native_input_gradient, _native_weight_gradient),
    "triton": Kernel(lambda x_NC: x_NC, _triton_forward, _triton_input_gradient, _triton_weight_gradient),
}
"""Kernels by name; ``native`` supports blocks of 4 and more, ``triton`` of 16 and more; both at most in fp32."""


class Choice(NamedTuple):
    """The kernel for a matrix, and the reason for the choice."""

    kernel: str
    reason: str


def choose_kernel(asked: str, block_size: int, density: float, device: torch.device, dtype: torch.dtype) -> Choice:
    """Return the requested kernel for a matrix or, for ``auto``, the fastest according to measured densities.

    Args:
        asked: ``auto`` or a name of ``KERNELS``.
        block_size: b.
        density: share of the blocks that are nonzero.
        device: of the blocks.
        dtype: of the activations.

    Raises:
        UserError: the requested kernel is not available.
    """
    if asked == "triton" and (reason := why_not_triton(device)):
        raise UserError(f'sparsity.kernel = "triton" cannot compute here: {reason}; set it to "auto"')
    what = f"blocks of {block_size} at a density of {density:.2g} in {dtype_name(dtype)}"
    if device.type != "cpu" and asked in ("auto", "native"):
        if density > _DENSEST_ON_GPU.get(block_size, 0.0) or dtype == torch.float64:
            return Choice("reference", f"dense products are probably faster for {what}")
        reason = why_not_triton(device)
        return Choice("reference", reason) if reason else Choice("triton", f"probably the fastest for {what}")
    if asked == "native" and block_size not in native.BLOCK_SIZES:
        sizes = ", ".join(map(str, native.BLOCK_SIZES))
        raise UserError(f"the native kernel needs blocks of {sizes}, not of {block_size}; set another kernel")
    if asked == "native" and isinstance(native.form(), str):
        raise UserError(f'sparsity.kernel = "native" cannot compute here: {native.form()}; set it to "auto"')
    if (asked == "native" and dtype not in SUFFIXES) or (asked == "triton" and dtype == torch.float64):
        return Choice("reference", f"the {asked} kernel does not compute {dtype_name(dtype)}")
    if asked != "auto":
        return Choice(asked, "as asked")
    densest, form = _densest(dtype), native.form()
    if block_size in native.BLOCK_SIZES and dtype in SUFFIXES and isinstance(form, Form):
        limit = _DENSEST_WITH_TILES if native.has_tiles(form, block_size, dtype) else densest.native
        if density <= limit:
            return Choice("native", f"blocks of {block_size} at a density of at most {limit:g} in {dtype_name(dtype)}")
    limit = densest.torch.get(block_size, 0.0)
    if density <= limit:
        return Choice("torch", f"blocks of {block_size} at a density of at most {limit:g} in {dtype_name(dtype)}")
    return Choice("reference", f"dense products are faster for {what}")


def _densest(dtype: torch.dtype) -> _Densest:
    if dtype != torch.bfloat16:
        return _DENSEST_FP32
    return _DENSEST_WITH_AMX if "amx_bf16" in cpu_flags() else _DENSEST_BF16


class Scores:
    """The sum of a matrix's pooled absolute dense gradients over micro-batches.

    Args:
        pattern: determines the numbers of block rows and columns.
        pooling: ``sum``, ``avg`` or ``max`` of the absolute gradients of a block's weights.
    """

    def __init__(self, pattern: Pattern, pooling: str) -> None:
        self.pooling = pooling
        shape = (pattern.num_rows, pattern.num_columns)
        self.total = torch.zeros(shape, dtype=torch.float64, device=pattern.rows.device)
        """float64 ``[R, C]``, so that the order of the micro-batches has almost no effect."""

    def add(self, gradient_NC: Tensor, x_NC: Tensor) -> None:
        """Add the scores of a micro-batch, given the gradient of its output ``[N, R·b]`` and its input ``[N, C·b]``."""
        form = form_of("linear", x_NC)
        if form is None:
            self.add_dense(gradient_NC.t() @ x_NC)
        else:
            dense = gradient_NC.new_empty(gradient_NC.shape[1], x_NC.shape[1], dtype=torch.float32)
            linear_weight_gradient(gradient_NC, x_NC, dense, None, form.isa, False)
            self.add_dense(dense)

    def add_dense(self, gradient: Tensor) -> None:
        """Add a micro-batch's dense gradient ``[R·b, C·b]``, which is overwritten."""
        num_rows, num_columns = self.total.shape
        dense = gradient.abs_().float()
        grid = dense.view(num_rows, len(dense) // num_rows, num_columns, -1)
        # rows first: summing contiguous lines takes a third of the time of a sum over both dimensions
        pools: dict[str, Callable[[Tensor], Tensor]] = {
            "sum": lambda grid: grid.sum(1).sum(-1),
            "avg": lambda grid: grid.mean(1).mean(-1),
            "max": lambda grid: grid.amax(1).amax(-1),
        }
        self.total += pools[self.pooling](grid)


def block_sparse_linear(
    x: Tensor,
    values: Tensor,
    pattern: Pattern,
    kernel: str,
    scores: Scores | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return ``x Wᵀ + b`` ``[..., R·b]`` for a matrix of blocks.

    Args:
        x: ``[..., C·b]``, of any floating dtype.
        values: ``[n, b, b]``, in the order of ``pattern``; fp32, with an fp32 gradient, or of the dtype of ``x``.
        pattern: the positions of the blocks.
        kernel: a name of ``KERNELS`` that supports the dtype of ``x``: see ``choose_kernel``.
        scores: collects the pooled dense gradients of backward passes; None to compute none.
        bias: ``[R·b]``, of any floating dtype, or None.
    """
    rows = KERNELS[kernel].arrange(x.reshape(-1, x.shape[-1]))
    y: Tensor = block_sparse_product(rows, values.to(x.dtype), bias, [*pattern], kernel)
    if scores is not None and y.requires_grad and values.requires_grad:
        _collect(scores, y, rows)
    return y.view(*x.shape[:-1], y.shape[-1])


def _collect(scores: Scores, y_NC: Tensor, x_NC: Tensor) -> None:
    """Make the backward pass of ``y`` add to ``scores``."""
    y_NC.register_hook(partial(scores.add, x_NC=x_NC.detach()))  # type: ignore[no-untyped-call]


def prepare_compilation() -> None:
    """Exclude functions from tracing; call it before ``torch.compile``, once or more often.

    As decorators, these two calls would import the compiler with this module, which takes two seconds.
    """
    global _collect
    torch.compiler.assume_constant_result(choose_kernel)  # type: ignore[no-untyped-call]
    _collect = torch.compiler.disable(_collect)  # type: ignore[no-untyped-call]


@operator(device="any", has_gradient=True)
def block_sparse_product(
    x_NC: Tensor, values: Tensor, bias: Tensor | None, pattern: Sequence[Tensor], kernel: str
) -> Tensor:
    """Return ``x Wᵀ + b`` ``[N, R·b]``.

    Args:
        x_NC: ``[N, C·b]``, in the memory layout of ``Kernel.arrange``.
        values: ``[n, b, b]``, of the same dtype.
        bias: ``[R·b]``, of any floating dtype, or None; has no default, with which autograd would not count it.
        pattern: the tensors of a ``Pattern``.
        kernel: a name of ``KERNELS``; only ``native`` adds the bias in the same pass.
    """
    return KERNELS[kernel].forward(x_NC, values, Pattern(*pattern), bias)


@shapes_of("block_sparse_product")
def _(x_NC: Tensor, values: Tensor, bias: Tensor | None, pattern: Sequence[Tensor], kernel: str) -> Tensor:
    return x_NC.new_empty(len(x_NC), Pattern(*pattern).num_rows * values.shape[-1])


@operator(device="any")
def block_sparse_input_gradient(gradient_NC: Tensor, values: Tensor, pattern: Sequence[Tensor], kernel: str) -> Tensor:
    """Return ``dy W`` ``[N, C·b]``; arguments as for ``block_sparse_product``."""
    return KERNELS[kernel].input_gradient(gradient_NC, values, Pattern(*pattern))


@shapes_of("block_sparse_input_gradient")
def _(gradient_NC: Tensor, values: Tensor, pattern: Sequence[Tensor], kernel: str) -> Tensor:
    return gradient_NC.new_empty(len(gradient_NC), Pattern(*pattern).num_columns * values.shape[-1])


@operator(device="any")
def block_sparse_weight_gradient(
    gradient_NC: Tensor, x_NC: Tensor, pattern: Sequence[Tensor], block_size: int, kernel: str
) -> Tensor:
    """Return the blocks ``[n, b, b]`` of ``dyᵀ x``; arguments as for ``block_sparse_product``."""
    return KERNELS[kernel].weight_gradient(gradient_NC, x_NC, Pattern(*pattern), block_size)


@shapes_of("block_sparse_weight_gradient")
def _(gradient_NC: Tensor, x_NC: Tensor, pattern: Sequence[Tensor], block_size: int, kernel: str) -> Tensor:
    return x_NC.new_empty(len(Pattern(*pattern).rows), block_size, block_size)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Sequence[Tensor], str], output: Tensor) -> None:
    x_NC, values, bias, pattern, ctx.kernel = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x_NC, values, *pattern)


def _gradients(ctx: Any, gradient_NC: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[None], None]:
    x_NC, values, *pattern = ctx.saved_tensors
    needs_x, needs_values, needs_bias, *_ = ctx.needs_input_grad
    of_x = block_sparse_input_gradient(gradient_NC, values, pattern, ctx.kernel) if needs_x else None
    of_values = None
    if needs_values:
        of_values = block_sparse_weight_gradient(gradient_NC, x_NC, pattern, values.shape[-1], ctx.kernel)
    of_bias = gradient_NC.sum(0).to(ctx.bias_dtype) if needs_bias else None
    return of_x, of_values, of_bias, [None] * len(pattern), None


torch.library.register_autograd("hornbook::block_sparse_product", _gradients, setup_context=_keep)
