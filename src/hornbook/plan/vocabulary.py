"""Default vocabularies for plans without data."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from hornbook.config.recipe import Recipe

_USUAL: Final = {
    "gpt": 50257, "bert": 30522, "roberta": 50265, "groupbert": 30522, "modernbert": 50368, "decoder": 32000
}  # fmt: skip
"""Vocabulary sizes of the published models, by family; of decoders, that of the first Llama."""
_USUAL_LABELS: Final = 2


def with_vocabulary(recipe: Recipe) -> Recipe:
    """Return the recipe with the defaults of its published model: its vocabulary, and two classes."""
    model: Any = recipe.model
    changes: dict[str, object] = {}
    if model.family in _USUAL and model.vocab_size is None:
        changes["vocab_size"] = _USUAL[model.family]
    kinds = {"classification": "classification", "span": "span"}
    if (head := kinds.get(recipe.objective.name)) is not None:
        changes["head"] = head
        if head == "classification" and model.num_labels is None:
            changes["num_labels"] = len(getattr(recipe.objective, "labels", ())) or _USUAL_LABELS
    return replace(recipe, model=replace(model, **changes)) if changes else recipe


def assumptions(recipe: Recipe) -> Iterator[str]:
    """Yield what a plan of ``recipe`` assumes, since neither the recipe nor data say it."""
    planned: Any = with_vocabulary(recipe).model
    if planned.vocab_size != recipe.model.vocab_size:
        size = f"{planned.vocab_size:,}"
        yield f"a vocabulary of {size}, the published model's (`data.train` or `model.vocab_size` sets it)"
    if getattr(planned, "num_labels", None) != getattr(recipe.model, "num_labels", None):
        yield f"{planned.num_labels} classes (`model.num_labels` sets them)"
    if recipe.training.epochs is not None:
        yield "1,000 steps in place of epochs (`data.train` sets them)"
