"""Train the smallest model for a short while, from which `hornbook.plan.dial.Corpus` predicts the loss of any run.

::

    2^16 tokens          ->  loss on held-out text, early   } how fast this text is learned,
    2^17 to 2^20         ->  loss on the same text, late    } and from where

Simple measures of a text cannot tell this: compressors and bigrams mispredicted unknown texts by 13 % (root mean
square), these losses by 1 to 6 %. LOG.md has both.
"""

import logging
import math
from collections.abc import Callable
from typing import Final

import torch

from hornbook.config import Recipe
from hornbook.engine.build_training import build_loader, build_samples, build_training
from hornbook.engine.step import train_step
from hornbook.engine.validation import SCORING, validate
from hornbook.parallel.world import World
from hornbook.plan.dial import EARLY_TOKENS, MOST_EPOCHS, PILOTS, Pilot
from hornbook.samples.sources import Sources

_logger = logging.getLogger("hornbook.measure")

_HELD_OUT_TOKENS: Final = 2**17


def pilot_tokens(unique: float, most: float) -> int | None:
    """Return the tokens of the longest pilot that fits, None if none does.

    Args:
        unique: tokens of the training split, of which no run repeats too many.
        most: tokens of the smallest model's training that a pilot may cost.
    """
    beside = EARLY_TOKENS + 2 * SCORING * _HELD_OUT_TOKENS
    fitting = [tokens for tokens in PILOTS if tokens <= MOST_EPOCHS * unique and tokens + beside <= most]
    return max(fitting, default=None)


def train_pilot(recipe_of: Callable[[int], Recipe], sources: Sources, tokens: int, device: torch.device) -> Pilot:
    """Return the losses of a pilot, in nats per token.

    Args:
        recipe_of: returns the complete recipe of the smallest model for a number of tokens.
        sources: of both recipes, with a held-out split.
        tokens: one of `PILOTS`.
        device: one of those that train.
    """
    _logger.warning("training a small model on %s tokens, to predict the loss", f"{tokens:,}")
    early, late = (_loss(recipe_of(each), sources, device) for each in (EARLY_TOKENS, tokens))
    return Pilot(tokens=tokens, early=early, late=late)


def _loss(recipe: Recipe, sources: Sources, device: torch.device) -> float:
    world = World(device=device)
    samples = build_samples(recipe, sources, on_cpu=device.type == "cpu")
    assert recipe.training.steps is not None and samples.held_out is not None
    state, config = build_training(recipe, recipe.training.steps, world)
    loader = build_loader(recipe, samples, world, vocab_size=state.model.num_ids, prefetch=0)
    for _ in range(recipe.training.steps):
        train_step(state, next(loader), config)
    return validate(
        state.model,
        samples.held_out,
        config.objective,
        forward=config.forward,
        micro_batch_size=recipe.training.micro_batch_size,
        max_windows=max(1, _HELD_OUT_TOKENS // recipe.sequence_length),
    ).loss


def bits_per_nat(sources: Sources) -> float | None:
    """Return the bits per byte of held-out text for a nat per token, None if the bytes of the text are not known."""
    if not sources.num_validation_bytes:
        return None
    return sum(store.num_tokens for store in sources.held_out) / sources.num_validation_bytes / math.log(2)
