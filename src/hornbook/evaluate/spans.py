"""Score the ends of token sequences of any length: an answer after its context, or a whole text after its prefix.

    spans     [a b c|d]  [e|f g]  [h i j k l|m]      the tokens right of | are predicted
    by length [h i j k l|m]  [a b c|d]  [e|f g]      so that batches have little padding
    batch     [h i j k l]    [a b c]                 -> nats of m and d, and whether each was the most likely
              [. . . . m]    [. . d]  .

Results are in the order of the spans. The longest are computed first, so that running out of memory happens at once.
The price: all spans are in memory, at a few bytes per token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hornbook.model import LanguageModel
from hornbook.model.head import OutputHead
from hornbook.model.language_model import Forward, forward_resident
from hornbook.parallel.ranks import Ranks
from hornbook.samples.batches import Batch
from hornbook.samples.given import decoder_batch
from hornbook.samples.windows import NOT_SCORED

_LOGITS_AT_ONCE = 512


@dataclass(frozen=True, kw_only=True)
class Span:
    """A sequence whose end is scored.

    Attributes:
        tokens: int64[n], context and answer; the last token is only a target.
        num_scored: length of the answer, 1 to n - 1.
    """

    tokens: NDArray[np.int64]
    num_scored: int

    @property
    def num_inputs(self) -> int:
        """The number of tokens that the model reads."""
        return len(self.tokens) - 1

    def cut(self, num_inputs: int) -> "Span":
        """Return the span with its context truncated on the left to ``num_inputs`` inputs at most."""
        assert self.num_scored <= num_inputs, "the answer is longer than num_inputs"
        return Span(tokens=self.tokens[-(num_inputs + 1) :], num_scored=self.num_scored)


@dataclass(frozen=True, kw_only=True)
class Score:
    """The scores of the answer tokens of one span.

    Attributes:
        nats: float64[num_scored], the negative log-likelihood of each token.
        likeliest: bool[num_scored], whether no token is more likely.
        likeliest_allowed: bool[num_scored], the same, ignoring banned tokens.
    """

    nats: NDArray[np.float64]
    likeliest: NDArray[np.bool_]
    likeliest_allowed: NDArray[np.bool_]


def batches(
    spans: Sequence[Span], *, micro_batch_size: int, rank: int = 0, world_size: int = 1
) -> Iterator[tuple[list[int], Batch]]:
    """Yield this rank's batches: the numbers of up to ``micro_batch_size`` spans, and the batch, padded on the right.

    Every rank gets the same number of batches, since sharded models compute in step: a rank without spans gets a batch
    of the shortest span, with empty numbers.
    """
    order = sorted(range(len(spans)), key=lambda index: -spans[index].num_inputs)
    for first in range(0, len(order), micro_batch_size * world_size):
        start = first + rank * micro_batch_size
        numbers = order[start : start + micro_batch_size]
        yield numbers, _batch([spans[number] for number in numbers or order[-1:]])


def score(
    model: LanguageModel,
    spans: Sequence[Span],
    *,
    forward: Forward = forward_resident,
    ranks: Ranks | None = None,
    micro_batch_size: int,
    banned_V: Tensor | None = None,
) -> list[Score]:
    """Score the ends of all spans; every rank gets all results.

    Args:
        model: in evaluation mode.
        spans: none longer than ``max_positions + 1`` tokens.
        forward: runs the model on a batch.
        ranks: ranks that share the spans; None for a single process.
        micro_batch_size: spans per batch.
        banned_V: bool ``[V]``, tokens that ``likeliest_allowed`` ignores; None for none.
    """
    ranks = ranks or Ranks()
    starts = np.cumsum([0, *(span.num_scored for span in spans)])
    results_3N = np.zeros((3, starts[-1]))
    for numbers, batch in batches(spans, micro_batch_size=micro_batch_size, rank=ranks.rank, world_size=ranks.size):
        scored_3M = forward(model, batch, partial(_score_ends, banned_V=banned_V)).cpu().double().numpy()
        places = [place for number in numbers for place in range(starts[number], starts[number + 1])]
        results_3N[:, places] = scored_3M[:, : len(places)]
    summed = ranks.sum_floats(results_3N.ravel().tolist())
    nats, likeliest, allowed = np.reshape(summed, results_3N.shape)
    return [
        Score(nats=nats[start:end], likeliest=likeliest[start:end] > 0, likeliest_allowed=allowed[start:end] > 0)
        for start, end in pairwise(starts)
    ]


def _batch(spans: Sequence[Span]) -> Batch:
    """Return the batch of spans: ``tokens``, ``targets``, ``positions`` and ``keys``, ``[B, longest]``."""
    batch = decoder_batch([span.tokens[:-1] for span in spans])
    batch["targets"].fill_(NOT_SCORED)
    for row, span in enumerate(spans):
        scored = torch.as_tensor(span.tokens[-span.num_scored :])
        batch["targets"][row, span.num_inputs - span.num_scored : span.num_inputs] = scored
    return batch


def _score_ends(head: OutputHead, x_BTD: Tensor, batch: Batch, *, banned_V: Tensor | None) -> Tensor:
    """Return ``nats``, ``likeliest`` and ``likeliest_allowed`` of a batch's scored tokens: fp32 ``[3, N]``."""
    scored_BT = batch["targets"] != NOT_SCORED
    x_ND, targets_N = x_BTD[scored_BT], batch["targets"][scored_BT]
    parts = []
    for x, targets in zip(torch.split(x_ND, _LOGITS_AT_ONCE), torch.split(targets_N, _LOGITS_AT_ONCE), strict=True):
        logits = head.logits(x)
        nats = -torch.log_softmax(logits, -1).gather(1, targets[:, None]).squeeze(1)
        allowed = logits if banned_V is None else logits.masked_fill(banned_V, -torch.inf)
        hits = [(values.argmax(-1) == targets).float() for values in (logits, allowed)]
        parts.append(torch.stack([nats, *hits]))
    return torch.cat(parts, 1)
