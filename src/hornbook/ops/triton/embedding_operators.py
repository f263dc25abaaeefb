"""The operators of Triton's embedding, for PyTorch's dispatcher; gradients are added to those that there are."""

from typing import Any

import torch
from torch import Tensor

from hornbook.ops.native import kernels
from hornbook.ops.native.linear import has_plain_gradient
from hornbook.ops.operators import operator, shapes_of
from hornbook.ops.triton.programs import Drop


@operator(device="any")
def triton_embedding(
    tokens: Tensor,
    positions: Tensor | None,
    table: Tensor,
    position_table: Tensor | None,
    dtype: torch.dtype,
    keys: Tensor | None,
    site: int,
    probability: float,
) -> Tensor:
    """Return ``drop(table[tokens] + position_table[positions])`` ``[..., D]`` in a dtype; see ``embed``."""
    from hornbook.ops.triton.embedding import embedding

    drop = None if keys is None else Drop(keys, site, probability)
    return embedding(tokens, positions, (table, position_table), drop, dtype)


@shapes_of("triton_embedding")
def _(tokens: Tensor, positions: Tensor | None, table: Tensor, *others: Any) -> Tensor:
    return table.new_empty(*tokens.shape, table.shape[1], dtype=others[1])


@operator(changes=(0,), device="any")
def triton_add_rows(
    total: Tensor,
    ids: Tensor,
    order: Tensor,
    gradient: Tensor,
    keys: Tensor | None,
    site: int,
    probability: float,
) -> None:
    """Add the rows of a gradient to those of ``total``, after the dropout's slope, if ``keys`` are given.

    Args:
        total: ``[V, D]`` fp32.
        ids: int32 ``[N]``, sorted: the rows of ``total``.
        order: int64 ``[N]``, the rows of the gradient.
        gradient: ``[..., D]``.
        keys: of the dropout, as many as rows of the gradient.
        site: of the dropout.
        probability: share of dropped elements.
    """
    from hornbook.ops.triton.embedding import add_rows

    add_rows(total, ids, order, gradient, None if keys is None else Drop(keys, site, probability))


@shapes_of("triton_add_rows")
def _(*arguments: Any) -> None:
    return None


def embed(
    tokens: Tensor,
    positions: Tensor | None,
    table: Tensor,
    position_table: Tensor | None,
    twins: tuple[Tensor, ...],
    drop: Drop | None,
    dtype: torch.dtype,
) -> Tensor:
    """Return ``drop(table[tokens] + position_table[positions])`` ``[..., D]`` in ``dtype``.

    Args:
        tokens: int64 ``[...]``; ids that the table does not have give NaN.
        positions: int64 ``[...]``, with ``position_table``.
        table: ``[V, D]`` fp32.
        position_table: ``[P, D]`` fp32, or None.
        twins: the table's memory as another parameter with its own gradient, that of a tied head; if it has one in an
            executor and the table has none, the rows are added to it, since both are added in the end.
        drop: the dropout, or None.
        dtype: of the result.
    """
    x: Tensor = _Embedding.apply(  # type: ignore[no-untyped-call]
        table, position_table, twins, tokens, positions, drop, dtype
    )
    return x


class _Embedding(torch.autograd.Function):
    """Adds rows in fp32 to the gradients that the tables have, in executors, or to zeros."""

    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        position_table: Tensor | None,
        twins: tuple[Tensor, ...],
        tokens: Tensor,
        positions: Tensor | None,
        drop: Drop | None,
        dtype: torch.dtype,
    ) -> Tensor:
        dropout = (None, 0, 0.0) if drop is None else drop
        ctx.save_for_backward(tokens, positions, dropout[0])
        ctx.dropout, ctx.tables = dropout[1:], (table, position_table, twins)
        ctx.adds = kernels.unchanged.adds_gradients
        return triton_embedding(tokens, positions, table.detach(), position_table, dtype, *dropout)  # type: ignore[no-any-return]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tokens, positions, keys = ctx.saved_tensors
        table, position_table, twins = ctx.tables
        found: list[Tensor | None] = []
        for number, (ids, of_table, others) in enumerate(((tokens, table, twins), (positions, position_table, ()))):
            if not ctx.needs_input_grad[number]:
                found.append(None)
                continue
            known = _known(of_table, others) if ctx.adds else None
            total = torch.zeros_like(of_table, dtype=torch.float32) if known is None else known
            triton_add_rows(total, *torch.sort(ids.flatten().int(), stable=True), gradient, keys, *ctx.dropout)
            found.append(total if known is None else None)
        return *found, *[None] * 5


def _known(table: Tensor, twins: tuple[Tensor, ...]) -> Tensor | None:
    """Return the gradient to which rows of the table's are added, if there is one."""
    if has_plain_gradient(table):
        return table.grad
    if table.grad is not None or not isinstance(table, torch.nn.Parameter):
        return None
    is_free = not table._backward_hooks and not table._post_accumulate_grad_hooks
    return next((twin.grad for twin in twins if is_free and has_plain_gradient(twin)), None)
