"""The products of a block-sparse matrix by native operators, in fp32: tiles of tokens, a weight a broadcast.

::

    x [N, C·b] --pack--> tiles [N / t, C·b, t] --product--> y [N, R·b]          rows of blocks
    dy --pack--> tiles ----------------------- product--> dx                    the same, of the transposed blocks
    tiles of dy and x ------------------------ weight gradient--> dvalues

Activations of bf16 are widened before and rounded after. In a new run the newest form that is right computes: forward
products are the same in all of them, bit for bit.
"""

import functools

import torch
from torch import Tensor

from hornbook.ops.native.build import BuildError
from hornbook.ops.native.kernels import BLOCKS, in_use
from hornbook.ops.native.library import PYTORCH, Form, Kernel, instruction_sets, is_right, load

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
    return next((Form(isa) for isa in instruction_sets() if is_right(KERNEL, isa)), "no native form is right here")


def product(own: Form, x_NC: Tensor, values: Tensor, starts: Tensor, columns: Tensor, num_rows: int) -> Tensor:
    """Return ``x Wᵀ`` ``[N, R·b]`` fp32.

    Args:
        own: computes it.
        x_NC: ``[N, C·b]`` of any floating dtype.
        values: blocks ``[n, b, b]``, fp32, contiguous, row of blocks by row.
        starts: int64 ``[R + 1]``, the first block of each row.
        columns: int64 ``[n]``.
        num_rows: R.
    """
    size, threads = values.shape[-1], torch.get_num_threads()
    y_NC = torch.empty(len(x_NC), num_rows * size)
    own(
        "block_sparse_product_f32", pack(own, x_NC), len(x_NC), x_NC.shape[1], values, starts, columns, num_rows, size,
        y_NC, threads,
    )  # fmt: skip
    return y_NC


def weight_gradient(own: Form, gradient_NC: Tensor, x_NC: Tensor, starts: Tensor, columns: Tensor, size: int) -> Tensor:
    """Return the blocks ``[n, b, b]`` of ``dyᵀ x``, fp32; arguments as for ``product``."""
    of_values = torch.empty(len(columns), size, size)
    own(
        "block_sparse_weight_gradient_f32", pack(own, gradient_NC), pack(own, x_NC), len(x_NC), x_NC.shape[1], starts,
        columns, len(starts) - 1, size, of_values, torch.get_num_threads(),
    )  # fmt: skip
    return of_values


def pack(own: Form, x_NC: Tensor) -> Tensor:
    """Return the tiles of ``[N, features]``, fp32."""
    rows = x_NC.float().contiguous()
    tile = own.integer("block_sparse_tile_f32")
    tiles = torch.empty(-(-len(rows) // tile) * tile * rows.shape[1])
    own("block_sparse_pack_f32", rows, rows.shape[1], *rows.shape, tiles, torch.get_num_threads())
    return tiles


def _agrees(own: Form, _: torch.dtype) -> bool:
    """Compare both products with PyTorch's in float64, on sizes that no tile divides."""
    random = torch.Generator().manual_seed(0)
    for size in (4, 16):
        x, g = (torch.randn(37, count * size, generator=random) for count in (3, 2))
        values = torch.randn(3, size, size, generator=random)
        starts, columns, rows = torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1]), torch.tensor([0, 0, 1])
        dense = torch.zeros(2, 3, size, size, dtype=torch.float64)
        dense[rows, columns] = values.double()
        y = x.double() @ dense.transpose(1, 2).reshape(2 * size, 3 * size).t()
        of_values = (g.double().t() @ x.double()).view(2, size, 3, size)[rows, :, columns]
        pairs = (
            (product(own, x, values, starts, columns, 2), y),
            (weight_gradient(own, g, x, starts, columns, size), of_values),
        )
        if not all(torch.allclose(ours.double(), exact, rtol=1e-4, atol=1e-4) for ours, exact in pairs):
            return False
    return True


def _trial(own: Form | None, _: torch.dtype) -> None:
    """Do nothing: forms are taken by their width, not by their time."""


KERNEL = Kernel(BLOCKS, torch.float32, _agrees, _trial)
