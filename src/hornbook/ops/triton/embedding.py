"""Embeddings of tokens and positions with the dropout behind them, and the sums of their gradients, each in one pass.

::

    forward     x = drop(table[t] + positions[p])                     in fp32, stored in the dtype of activations
    backward    sorted ids   4 4 | 4 7 | 9 9        blocks of places: a program adds the rows of each id in its block
                             └─┬───┘  │    │        an id within one block: added to the table's gradient at once
                             parts    +=   +=       an id over several: its parts are added in their order, then to it

No two programs add to a row, and all orders are fixed. Compared with PyTorch's, no gradient of a whole table is filled
with zeros and then added to the one that there is, such as a tied head's.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hornbook.ops.triton.dropout import _keeps, dropout_numbers, tile
from hornbook.ops.triton.programs import SUMMED_ROWS, Drop

SUMS = {"height": SUMMED_ROWS, "width": 64}
"""Places and columns of a program that adds rows."""


@triton.jit  # type: ignore[untyped-decorator]
def _embedding(
    tokens: tl.tensor, positions: tl.tensor, keys: tl.tensor, table: tl.tensor, position_table: tl.tensor,
    result: tl.tensor, num_ids: tl.tensor, num_rows: tl.tensor, num_columns: tl.tensor, site: tl.tensor,
    threshold: tl.tensor, factor: tl.tensor, has_positions: tl.constexpr, drops: tl.constexpr, height: tl.constexpr,
    width: tl.constexpr,
) -> None:  # fmt: skip
    """Ids that the table of tokens does not have become NaN, which a step reports."""
    places = tl.program_id(0).to(tl.int64) * height + tl.arange(0, height)
    columns = tl.program_id(1) * width + tl.arange(0, width)
    is_column = (columns < num_columns)[None, :]
    exists = (places < num_ids)[:, None] & is_column
    ids = tl.load(tokens + places, mask=places < num_ids, other=0)
    is_row = (ids >= 0) & (ids < num_rows)
    at = ids[:, None] * num_columns + columns[None, :]
    values = tl.load(table + at, mask=exists & is_row[:, None], other=float("nan"))
    if has_positions:
        ids = tl.load(positions + places, mask=places < num_ids, other=0)
        values += tl.load(position_table + ids[:, None] * num_columns + columns[None, :], mask=exists, other=0.0)
    if drops:
        key = tl.load(keys + places, mask=places < num_ids, other=0)[:, None]
        values = tl.where(_keeps(key, columns[None, :], site, threshold), values * factor, 0.0)
    at = places[:, None] * num_columns + columns[None, :]
    tl.store(result + at, values.to(result.dtype.element_ty), mask=exists)


@triton.jit  # type: ignore[untyped-decorator]
def _add_rows(
    ids: tl.tensor, order: tl.tensor, gradient: tl.tensor, keys: tl.tensor, total: tl.tensor, parts: tl.tensor,
    num_ids: tl.tensor, num_columns: tl.tensor, site: tl.tensor, threshold: tl.tensor, factor: tl.tensor,
    drops: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    """``parts`` ``[2, blocks, columns]``: of ids that began in an earlier block, and that go on in the next."""
    block = tl.program_id(0)
    columns = tl.program_id(1) * width + tl.arange(0, width)
    places = block * height + tl.arange(0, height)
    is_place, is_column = places < num_ids, (columns < num_columns)[None, :]
    own = tl.load(ids + places, mask=is_place, other=-1).to(tl.int64)
    after = tl.load(ids + places + 1, mask=places + 1 < num_ids, other=-1)
    before = tl.load(ids + block * height - 1, mask=block > 0, other=-1)
    rows = tl.load(order + places, mask=is_place, other=0)[:, None]
    exists = is_place[:, None] & is_column
    values = tl.load(gradient + rows * num_columns + columns[None, :], mask=exists, other=0.0).to(tl.float32)
    if drops:
        key = tl.load(keys + rows)
        values = tl.where(_keeps(key, columns[None, :], site, threshold), values * factor, 0.0)
    lanes = tl.arange(0, height)
    is_added = (own[:, None] == own[None, :]) & (lanes[:, None] >= lanes[None, :])
    sums = tl.dot(is_added.to(tl.float32), values, input_precision="ieee")  # of equal ids up to each place
    began, ends, is_last = own == before, own != after, lanes == height - 1
    is_whole = (is_place & ends & (own != before))[:, None] & is_column
    at = total + own[:, None] * num_columns + columns[None, :]
    tl.store(at, tl.load(at, mask=is_whole, other=0.0) + sums, mask=is_whole)
    of_part = parts + block.to(tl.int64) * num_columns + columns[None, :] + tl.zeros_like(rows)
    tl.store(of_part, sums, mask=(is_place & began & (ends | is_last))[:, None] & is_column)
    of_part += tl.num_programs(0).to(tl.int64) * num_columns
    tl.store(of_part, sums, mask=(is_place & is_last & (own != before) & (own == after))[:, None] & is_column)


@triton.jit  # type: ignore[untyped-decorator]
def _add_parts(
    ids: tl.tensor, total: tl.tensor, parts: tl.tensor, num_ids: tl.tensor, num_columns: tl.tensor,
    height: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    """Add the parts of the id that begins in a block and goes on in the next ones."""
    block = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * width + tl.arange(0, width)
    is_column = columns < num_columns
    end = (block + 1) * height
    own = tl.load(ids + end - 1, mask=end < num_ids, other=-1)
    before = tl.load(ids + block * height - 1, mask=block > 0, other=-1)
    goes_on = (end < num_ids) & (own != before)
    while goes_on:
        goes_on = tl.load(ids + end, mask=end < num_ids, other=-1) == own
        end += height
    num_parts = end // height - 1 - block  # with one too many, whose place is that after the last
    if num_parts > 1:
        sums = tl.load(parts + (tl.num_programs(0) + block) * num_columns + columns, mask=is_column, other=0.0)
        for number in range(1, num_parts):
            sums += tl.load(parts + (block + number) * num_columns + columns, mask=is_column, other=0.0)
        at = total + own.to(tl.int64) * num_columns + columns
        tl.store(at, tl.load(at, mask=is_column, other=0.0) + sums, mask=is_column)


def embedding(
    tokens: Tensor,
    positions: Tensor | None,
    tables: tuple[Tensor, Tensor | None],
    drop: Drop | None,
    dtype: torch.dtype,
) -> Tensor:
    """Return ``[..., D]``; see `hornbook.ops.triton.embedding_operators.triton_embedding`."""
    tokens, (table, position_table) = tokens.contiguous(), tables
    result = torch.empty(*tokens.shape, table.shape[1], dtype=dtype, device=table.device)
    if result.numel():
        fixed = tile(table.shape[1])
        grid = (triton.cdiv(tokens.numel(), fixed["height"]), triton.cdiv(table.shape[1], fixed["width"]))
        ids = (tokens, tokens if positions is None else positions.contiguous())
        keys = tokens if drop is None else drop.keys.contiguous()
        given = (*ids, keys, table, table if position_table is None else position_table)
        numbers = (tokens.numel(), *table.shape, *dropout_numbers(drop))
        has = {"has_positions": position_table is not None, "drops": drop is not None}
        _embedding[grid](*given, result, *numbers, **has, **fixed)
    return result


def add_rows(total: Tensor, ids: Tensor, order: Tensor, gradient: Tensor, drop: Drop | None) -> None:
    """Add the rows of equal ids; see `hornbook.ops.triton.embedding_operators.triton_add_rows`."""
    if not gradient.numel():
        return
    num_columns, gradient = total.shape[1], gradient.contiguous()
    grid = (triton.cdiv(len(ids), SUMS["height"]), triton.cdiv(num_columns, SUMS["width"]))
    parts = torch.empty(2, grid[0], num_columns, dtype=torch.float32, device=total.device)
    keys = order if drop is None else drop.keys.contiguous()
    numbers = (len(ids), num_columns, *dropout_numbers(drop))
    _add_rows[grid](ids, order, gradient, keys, total, parts, *numbers, drops=drop is not None, **SUMS)
    _add_parts[grid](ids, total, parts, len(ids), num_columns, **SUMS)
