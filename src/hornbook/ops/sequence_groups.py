"""Where sequences lie among the flat tokens, and the way there and back.

Attention needs sequences side by side, ``[G, t]``; everything else is content with tokens one after the other. So
sequences of similar length form a group, and the groups lie one after the other as R places::

    tokens    aaaaa bbb cccc .. dd        lengths 5 3 4 2, two tokens of padding
    groups    aaaaa                       [G=2, t=5]: a, c
              cccc.
              bbb                         [G=2, t=3]: b, d
              dd.

``slots`` ``[R]`` says which token comes to a place, ``places`` ``[B·T]`` to which place a token goes, -1 for none. They
are inverse to each other, so that the gradient of a gather is the other gather, and nothing has to be added up. The
price: all tokens are copied there and back in every layer, a few hundredths of its time.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_COARSE = 16
"""On a CPU, sequences whose lengths differ by more than so many tokens and by more than an eighth are not grouped."""


def group_sequences(firsts_S: Tensor, lengths_S: Tensor, shape: torch.Size, device: torch.device) -> dict[str, Tensor]:
    """Return how the sequences of a micro-batch are grouped.

    Args:
        firsts_S: flat index of each sequence's first token, in the host's memory.
        lengths_S: its tokens, likewise; sequences of none are left out.
        shape: of the tokens, (B, T).
        device: where the tokens are.

    Returns:
        ``groups``, int64 ``[number of groups, 3]`` in the host's memory: sequences G, places t, and whether some place
        is empty. And ``slots`` and ``places`` as above, and ``there``, bool ``[R]``, whether a place holds a token: all
        three are missing where every row is one whole sequence.
    """
    lengths, firsts = lengths_S.tolist(), firsts_S.tolist()
    if lengths == [shape[1]] * shape[0] and firsts == list(range(0, shape.numel(), shape[1])):
        return {"groups": torch.tensor([[*shape, 0]])}
    order = sorted((number for number, length in enumerate(lengths) if length), key=lambda number: -lengths[number])
    groups, slots = [], []
    for members in _cut(order, lengths, is_coarse=device.type != "cpu"):
        steps = torch.arange(lengths[members[0]])
        of_group = torch.tensor([firsts[number] for number in members]).unsqueeze(1) + steps
        is_empty = steps >= torch.tensor([lengths[number] for number in members]).unsqueeze(1)
        groups.append([len(members), len(steps), int(is_empty.any())])
        slots.append(of_group.masked_fill_(is_empty, -1).flatten())
    slots_R = torch.cat([*slots, torch.empty(0, dtype=torch.int64)])
    return {
        "groups": torch.tensor(groups, dtype=torch.int64).view(-1, 3),
        **_moved({"slots": slots_R, "places": inverse(slots_R, shape.numel()), "there": slots_R >= 0}, device),
    }


def spread_sequences(
    firsts_S: Tensor, lengths_S: Tensor, num_tokens: int, gap: int, device: torch.device
) -> dict[str, Tensor]:
    """Return the way to a column of all tokens in which sequences have ``gap`` empty rows before and behind them.

    Returns:
        ``rows``, the token of each row of the column, and ``row_of``, the row of each token; -1 for none.
    """
    empty = torch.full((gap,), -1)
    parts = [empty]
    for first, length in zip(firsts_S.tolist(), lengths_S.tolist(), strict=True):
        parts += [torch.arange(first, first + length), empty]
    rows = torch.cat(parts)
    return _moved({"rows": rows, "row_of": inverse(rows, num_tokens)}, device)


def inverse(index_M: Tensor, num_rows: int) -> Tensor:
    """Return for each of ``num_rows`` where ``index`` names it, -1 for nowhere; an index of -1 names nothing."""
    found = torch.full((num_rows + 1,), -1, dtype=torch.int64)
    found[index_M] = torch.arange(len(index_M))
    return found[:num_rows]


def take(x_RC: Tensor, index_M: Tensor, inverse_R: Tensor) -> Tensor:
    """Return the rows of ``x`` that ``index`` names, ``[M, C]``, and zeros for -1; each row is named once at most.

    Args:
        x_RC: rows.
        index_M: int64.
        inverse_R: ``inverse(index_M, R)``, which is the way of the gradient.
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


def _moved(maps: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: index.to(device, non_blocking=True) for name, index in maps.items()}


def _cut(order: list[int], lengths: list[int], *, is_coarse: bool) -> Iterator[list[int]]:
    """Yield the groups of sequences that come longest first; a coarse device wants one large product."""
    members: list[int] = []
    for number in order:
        longest = lengths[members[0]] if members else 0
        if members and not is_coarse and longest - lengths[number] > max(_COARSE, longest // 8):
            yield members
            members = []
        members.append(number)
    if members:
        yield members
