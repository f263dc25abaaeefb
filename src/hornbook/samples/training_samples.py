"""What a run learns from and is measured on, made of its stores by what it has to learn.

::

    causal_lm            windows of the stream of tokens
    mlm                  texts with masks            } laid out in rows without wasted padding
    mlm_nsp              pairs of texts with masks   }

An objective of one's own learns from windows.
"""

import math

from hornbook.config import MaskingConfig, Recipe
from hornbook.samples.batches import HeldOutWindows, Samples, WindowBatches
from hornbook.samples.encoder_samples import encoder_samples
from hornbook.samples.labelled_samples import LabelledSources, labelled_samples
from hornbook.samples.mixture import Mixture
from hornbook.samples.sources import Sources, open_windows
from hornbook.samples.windows import EvaluationWindows, TokenSource


def build_samples(recipe: Recipe, sources: Sources, *, on_cpu: bool) -> Samples:
    """Return the samples for what the recipe's objective learns.

    Args:
        recipe: complete, with a vocabulary.
        sources: the opened stores.
        on_cpu: where the model runs, which decides how an encoder's sequences are laid out.

    Raises:
        UserError, DataError: the stores do not serve the objective.
    """
    if isinstance(sources, LabelledSources):
        return labelled_samples(recipe, sources, on_cpu=on_cpu)
    if isinstance(recipe.objective, MaskingConfig):
        return encoder_samples(recipe.objective, recipe, sources, on_cpu=on_cpu)
    return _window_samples(recipe, sources)


def _window_samples(recipe: Recipe, sources: Sources) -> Samples:
    windows = open_windows(recipe, sources)
    mask, shares = recipe.data.document_mask, list[tuple[float, str]]()
    if isinstance(windows, Mixture):
        shares = [*zip(windows.shares, recipe.data.train, strict=False)]

    def scored(source: TokenSource) -> HeldOutWindows:
        held_out = EvaluationWindows(source, recipe.sequence_length, score_end_of_text=False)
        return HeldOutWindows(held_out, document_mask=mask)

    return Samples(
        maker=WindowBatches(windows, seed=recipe.training.seed, document_mask=mask),
        num_samples=windows.num_items,
        tokens_per_sample=recipe.sequence_length,
        held_out=None if sources.validation is None else scored(sources.validation),
        held_out_bytes=sources.num_validation_bytes,
        held_out_stores={name: scored(store) for name, store in sources.held_out_by_name.items()},
        facts={"mixture": ", ".join(f"{share:.1%} {path}" for share, path in shares)} if len(shares) > 1 else {},
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
