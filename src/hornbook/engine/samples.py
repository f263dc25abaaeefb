"""What a run learns from and is measured on, made of its stores by what it has to learn.

::

    causal_lm            windows of the stream of tokens
    mlm                  texts with masks            } laid out in rows without wasted padding
    mlm_nsp              pairs of texts with masks   }

An objective of one's own learns from windows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatch

from hornbook.config import Recipe
from hornbook.data.batches import BatchMaker, HeldOut, HeldOutWindows, WindowBatches
from hornbook.data.examples import EvaluationWindows
from hornbook.data.mixture import Mixture
from hornbook.engine.sources import Sources, open_windows


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of a run."""

    maker: BatchMaker
    num_samples: int
    """Samples of an epoch."""
    tokens_per_sample: float
    """Mean of the tokens that count in a sample: its targets, or an encoder's tokens without padding."""
    held_out: HeldOut | None
    held_out_bytes: int | None = None
    """Bytes of its text, where all of its tokens are scored."""
    shows_padding: bool = False
    noun: str = "window"
    facts: Mapping[str, str] = field(default_factory=dict)
    """What a reader wants to know of them before the first step."""


@singledispatch
def build_samples(objective: object, recipe: Recipe, sources: Sources, *, on_cpu: bool) -> Samples:
    """Return the samples for an objective's section.

    Args:
        objective: ``recipe.objective``; its type decides.
        recipe: complete, with a vocabulary.
        sources: the opened stores.
        on_cpu: where the model runs, which decides how an encoder's sequences are laid out.

    Raises:
        UserError, DataError: the stores do not serve the objective.
    """
    windows = open_windows(recipe, sources)
    mask = recipe.data.document_mask
    held_out = None
    if sources.validation is not None:
        scored = EvaluationWindows(sources.validation, recipe.sequence_length, score_end_of_text=False)
        held_out = HeldOutWindows(scored, document_mask=mask)
    return Samples(
        maker=WindowBatches(windows, seed=recipe.training.seed, document_mask=mask),
        num_samples=windows.num_windows,
        tokens_per_sample=recipe.sequence_length,
        held_out=held_out,
        held_out_bytes=sources.num_validation_bytes,
        facts=_mixture(recipe, windows),
    )


def num_steps(recipe: Recipe, samples: Samples) -> int:
    """Return the length of the run in steps, whichever way the recipe gives it."""
    training = recipe.training
    if training.steps is not None:
        return training.steps
    if training.tokens is not None:
        return math.ceil(training.tokens / (training.global_batch_size * samples.tokens_per_sample))
    assert training.epochs is not None, "the validator asks for exactly one length"
    return math.ceil(training.epochs * samples.num_samples / training.global_batch_size)


def _mixture(recipe: Recipe, windows: Mixture) -> dict[str, str]:
    """What a mixture is made of; nothing for a single store."""
    shares = zip(windows.shares, recipe.data.train, strict=False)
    return {"mixture": ", ".join(f"{share:.1%} {path}" for share, path in shares)} if len(windows.shares) > 1 else {}
