"""The sequence of each token, for attention without masks and index maps (`hornbook.ops.triton.attention`).

::

    flat tokens   a a a b b . .        spans   0 0 0 3 3 5 6     first token of the sequence
                                               3 3 3 5 5 5 6     its end; of padding, which is in none, the token itself
                                               0 1 2 0 1 0 0     column of dropout
                                               1 1 1 1 1 0 0     1: all tokens between first and end are of the sequence

They are on the device. Nothing waits for them: shapes of later tensors depend at most on the longest sequence, whose
length is known in host memory, so layers compile once for all batches.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from hornbook.ops.native.kernels import FORMS
from hornbook.ops.triton.operators import TRITON
from hornbook.parallel.device import copied_to


class Spans(NamedTuple):
    """The sequences of flat tokens."""

    tokens: Tensor
    """int32 ``[4, N]``, see above."""
    longest: int
    """Most tokens between the first of a sequence and its end."""


def selected(device: torch.device) -> bool:
    """Return whether the run selected Triton's attention, which takes spans instead of masks and index maps."""
    return device.type == "cuda" and FORMS.get("triton_attention") == TRITON


def spans_of_sequences(firsts_S: Tensor, lengths_S: Tensor, num_tokens: int, device: torch.device) -> Spans:
    """Return the spans of an encoder's sequences; the dropout column is the position in the sequence.

    Args:
        firsts_S: int64, flat index of each sequence's first token, in host memory.
        lengths_S: int64, number of tokens of each sequence, in host memory.
        num_tokens: N, with padding.
        device: of the result.
    """
    firsts_M, ends_M = (bounds.repeat_interleave(lengths_S) for bounds in (firsts_S, firsts_S + lengths_S))
    steps_M = torch.arange(len(firsts_M)) - (lengths_S.cumsum(0) - lengths_S).repeat_interleave(lengths_S)
    tokens_N = torch.arange(num_tokens)
    zeros_N = torch.zeros_like(tokens_N)
    spans_4N = torch.stack((tokens_N, tokens_N, zeros_N, zeros_N))
    spans_4N[:, firsts_M + steps_M] = torch.stack((firsts_M, ends_M, steps_M, torch.ones_like(steps_M)))
    return Spans(copied_to(device, spans_4N.int()), int(lengths_S.max()) if len(lengths_S) else 0)


def spans_of_windows(positions_BT: Tensor, documents_BT: Tensor | None) -> Spans:
    """Return the spans of a decoder's windows; the dropout column is the position in the window.

    Args:
        positions_BT: int64, in the window, on the device of the result.
        documents_BT: int64, the document of each token, to which its attention is limited; None: the whole window.
    """
    batch, length = positions_BT.shape
    starts_B1 = torch.arange(batch, device=positions_BT.device).unsqueeze(1) * length
    if documents_BT is None:
        bounds = starts_B1.expand(batch, length), (starts_B1 + length).expand(batch, length)
        return Spans(torch.stack((*bounds, positions_BT, torch.ones_like(positions_BT))).flatten(1).int(), length)
    sorted_BT, order_BT = documents_BT.sort(dim=1, stable=True)
    left_BT, right_BT = (torch.searchsorted(sorted_BT, documents_BT, right=right) for right in (False, True))
    firsts_BT, ends_BT = order_BT.gather(1, left_BT), order_BT.gather(1, right_BT - 1) + 1
    are_whole_BT = ends_BT - firsts_BT == right_BT - left_BT  # otherwise, the document recurs after others
    spans_4BT = torch.stack((starts_B1 + firsts_BT, starts_B1 + ends_BT, positions_BT, are_whole_BT))
    return Spans(spans_4BT.flatten(1).int(), length)
