"""Default vocabularies for plans, which do not read the data."""

from dataclasses import replace
from typing import Any, Final

from hornbook.config.recipe import Recipe

_USUAL: Final = {"gpt": 50257, "bert": 30522, "roberta": 50265, "groupbert": 30522}
"""Vocabulary sizes of the published models, by family."""
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
