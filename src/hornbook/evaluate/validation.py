"""The validation loss: the held-out store once through the model, in windows without overlap."""

import math
from dataclasses import dataclass

import torch

from hornbook.data.examples import NOT_SCORED, EvaluationWindows
from hornbook.data.loader import evaluation_batches, refuse_unknown_tokens
from hornbook.model import LanguageModel
from hornbook.parallel.world import World


@dataclass(frozen=True, kw_only=True)
class Validation:
    """A mean over scored tokens, the same on every rank."""

    loss: float
    """Nats per scored token; NaN if there is none."""
    tokens: int
    """Scored tokens."""
    bits_per_byte: float | None
    """Bits per byte of text, where every byte was scored and their number is known."""


def perplexity(nats: float) -> float:
    """Return ``exp(nats)``, infinite where that is too large for a number."""
    return math.inf if nats > 709.0 else math.exp(nats)


@torch.no_grad()
def validate(
    model: LanguageModel,
    windows: EvaluationWindows,
    *,
    world: World,
    micro_batch_size: int,
    document_mask: bool = False,
    max_windows: int | None = None,
    num_bytes: int | None = None,
) -> Validation:
    """Score ``windows`` and return their mean loss.

    Args:
        model: left in the mode in which it came.
        windows: of the held-out store.
        world: ranks share the windows.
        micro_batch_size: windows at a time.
        document_mask: whether attention stays inside a document.
        max_windows: score only so many, spread over the store.
        num_bytes: bytes of text that the store was made from.
    """
    was_training = model.training
    model.eval()
    nats, count = 0.0, 0
    for batch in evaluation_batches(
        windows,
        micro_batch_size=micro_batch_size,
        rank=world.rank,
        world_size=world.size,
        document_mask=document_mask,
        max_windows=max_windows,
    ):
        refuse_unknown_tokens(batch, model.vocab_size)
        placed = {name: tensor.to(world.device) for name, tensor in batch.items()}
        losses = model.head.token_losses(model.trunk(placed), placed["targets"])
        nats += float(losses.cpu().double().sum())
        count += int((batch["targets"] != NOT_SCORED).sum())
    model.train(was_training)
    (nats,), (count,) = world.sum_floats([nats]), world.sum_integers([count])
    complete = max_windows is None or max_windows >= windows.num_windows
    bits = nats / math.log(2) / num_bytes if num_bytes and complete else None
    return Validation(loss=nats / count if count else math.nan, tokens=count, bits_per_byte=bits)
