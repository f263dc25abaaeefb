"""The validation loss: what is held out, once through the model."""

import math
from dataclasses import dataclass

import torch

from hornbook.data.batches import HeldOut, placed, refuse_unknown_tokens
from hornbook.data.loader import evaluation_batches
from hornbook.model import LanguageModel
from hornbook.objective import Objective
from hornbook.parallel.world import World


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Means over what is scored, the same on every rank."""

    loss: float
    """The weighted sum of the terms, nats per scored token of a decoder; NaN if none is scored."""
    tokens: int
    """Tokens that were scored."""
    bits_per_byte: float | None
    """Bits per byte of text, where every byte was scored and their number is known."""
    terms: dict[str, float]
    """The mean of each term, where there are several."""


def perplexity(nats: float) -> float:
    """Return ``exp(nats)``, infinite where that is too large for a number."""
    return math.inf if nats > 709.0 else math.exp(nats)


@torch.no_grad()
def validate(
    model: LanguageModel,
    held_out: HeldOut,
    objective: Objective,
    *,
    world: World,
    micro_batch_size: int,
    max_windows: int | None = None,
    num_bytes: int | None = None,
) -> Validation:
    """Score what is held out and return the mean loss.

    Args:
        model: left in the mode in which it came.
        held_out: windows or sequences.
        objective: the terms of the loss.
        world: ranks share the windows.
        micro_batch_size: windows at a time.
        max_windows: score only so many, spread over the store.
        num_bytes: bytes of text that the store was made from, where every token of it is scored.
    """
    was_training = model.training
    model.eval()
    names = list(objective.weights)
    sums, counts = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    for batch in evaluation_batches(
        held_out, micro_batch_size=micro_batch_size, rank=world.rank, world_size=world.size, max_windows=max_windows
    ):
        refuse_unknown_tokens(batch, model.vocab_size)
        moved = placed(batch, world.device)
        scored = objective.counts(batch)
        found = objective.sums(model.head, model.trunk(moved), moved)
        for name in names:
            sums[name] += float(found[name])
            counts[name] += scored[name]
    model.train(was_training)
    totals = dict(zip(names, world.sum_floats(list(sums.values())), strict=True))
    scored = dict(zip(names, world.sum_integers(list(counts.values())), strict=True))
    terms = {name: totals[name] / scored[name] if scored[name] else math.nan for name in names}
    complete = max_windows is None or max_windows >= held_out.num_windows
    nats, first = sum(totals.values()), names[0]
    return Validation(
        loss=sum(weight * terms[name] for name, weight in objective.weights.items() if weight),
        tokens=scored[first],
        bits_per_byte=nats / math.log(2) / num_bytes if num_bytes and complete else None,
        terms=terms if len(terms) > 1 else {},
    )
