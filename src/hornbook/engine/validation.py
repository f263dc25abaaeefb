"""Compute the validation loss: one pass over the held-out data."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch

from hornbook.model import LanguageModel
from hornbook.model.language_model import Forward, evaluation_mode, forward_resident
from hornbook.objective import Objective
from hornbook.parallel.ranks import Ranks
from hornbook.samples.batches import Batch, HeldOut, evaluation_batches, refuse_unknown_ids

SCORING: Final = 1 / 3
"""Time of scoring a token relative to that of training on it."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Means over the scored tokens, the same on every rank."""

    loss: float
    """The weighted sum of the terms, for a decoder in nats per scored token; NaN if none is scored."""
    tokens: int
    """Number of tokens scored by the objective's first term."""
    share: float
    """Share of the windows that were scored."""
    standard_error: float | None
    """Estimated standard error of the first term's mean, since only a part of the windows was scored; else None."""
    bits_per_byte: float | None
    """Bits per byte of text by the first term alone, if every byte was scored and their number is known."""
    terms: dict[str, float]
    """The mean of each term, if there are several."""


def perplexity(nats: float) -> float:
    """Return ``exp(nats)``, infinite on overflow."""
    return math.inf if nats > 709.0 else math.exp(nats)


def validate(
    model: LanguageModel,
    held_out: HeldOut,
    objective: Objective,
    *,
    forward: Forward = forward_resident,
    ranks: Ranks | None = None,
    micro_batch_size: int,
    max_windows: int | None = None,
    num_bytes: int | None = None,
) -> Validation:
    """Score held-out data and return the mean loss.

    Bits per byte are the length of the text encoded with the model. So only the objective's first term counts, the
    negative log-likelihood of the text; a regularizer has a weight but encodes nothing.

    Args:
        model: left in its current mode.
        held_out: windows or sequences to score.
        objective: the terms of the loss.
        forward: runs the model on a batch.
        ranks: ranks that share the windows; None for a single process.
        micro_batch_size: windows per batch.
        max_windows: number of windows to score, spread evenly over the store; None for all.
        num_bytes: UTF-8 bytes of the store's text, if every token is scored.
    """
    names, ranks = list(objective.weights), ranks or Ranks()
    batches = evaluation_batches(
        held_out, micro_batch_size=micro_batch_size, rank=ranks.rank, world_size=ranks.size, max_windows=max_windows
    )
    with evaluation_mode(model):
        sums, counts, squares = _add_up(model, batches, objective, forward)
    totals = dict(zip(names, ranks.sum_floats(sums), strict=True))
    scored = dict(zip(names, ranks.sum_integers(counts), strict=True))
    terms = {name: totals[name] / scored[name] if scored[name] else math.nan for name in names}
    share = min(1.0, max_windows / held_out.num_items) if max_windows and held_out.num_items else 1.0
    first = names[0]
    squares = ranks.sum_floats(squares)
    return Validation(
        loss=sum(weight * terms[name] for name, weight in objective.weights.items() if weight),
        tokens=scored[first],
        share=share,
        standard_error=None if share == 1.0 else _standard_error(terms[first], scored[first], squares, share),
        bits_per_byte=totals[first] / math.log(2) / num_bytes if num_bytes and share == 1.0 else None,
        terms=terms if len(terms) > 1 else {},
    )


def _standard_error(mean: float, count: int, squares: list[float], share: float) -> float | None:
    """Return the standard error of a mean over a part of the windows, from the sums of batches; None for one batch.

    This is the error of a ratio estimator for clusters of windows (Cochran, Sampling Techniques, 1977, equation 6.13).

    Args:
        mean: loss per token.
        count: number of scored tokens.
        squares: over the batches, the sums of ``sum ** 2``, ``sum * count``, ``count ** 2``, and their number.
        share: share of the windows that were scored.
    """
    sums, products, counts, num_batches = squares
    if num_batches < 2:
        return None
    residuals = max(0.0, sums - 2 * mean * products + mean**2 * counts)
    return math.sqrt((1 - share) * residuals * num_batches / (num_batches - 1)) / count


def _add_up(
    model: LanguageModel, batches: Iterable[Batch], objective: Objective, forward: Forward
) -> tuple[list[float], list[int], list[float]]:
    """Return sum and count of each term over this rank's batches, with one device synchronization.

    Third are, for the first term, the sums that `_standard_error` takes.
    """
    names = list(objective.weights)
    found, counts = [], []
    for batch in batches:
        refuse_unknown_ids(batch, model.num_ids, getattr(model.embedding, "num_segments", 1))
        sums, scored = forward(model, batch, objective.sums), objective.counts(batch)
        found.append(torch.stack([sums[name] for name in names]))
        counts.append([scored[name] for name in names])
    totals = torch.zeros(len(names), dtype=torch.float64)
    if not found:
        return totals.tolist(), [0] * len(names), [0.0] * 4
    table, scored_tokens = torch.stack(found).cpu().double(), torch.tensor(counts)
    for row in table:
        totals += row
    nats, tokens = table[:, 0], scored_tokens[:, 0].double()
    squares = torch.stack([nats @ nats, nats @ tokens, tokens @ tokens, (tokens > 0).sum().double()])
    return totals.tolist(), scored_tokens.sum(0).tolist(), squares.tolist()
