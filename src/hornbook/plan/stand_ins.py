"""Recipes that stand in for others in plans: with a default vocabulary, where there is no data, or small.

A shrunk recipe is a small model with the same parts, whose steps take about a second.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from hornbook.config.parallel import ParallelConfig
from hornbook.config.recipe import Recipe

_USUAL: Final = {
    "gpt": 50257, "bert": 30522, "roberta": 50265, "groupbert": 30522, "modernbert": 50368, "decoder": 32000
}  # fmt: skip
"""Vocabulary sizes of the published models, by family; of decoders, that of the first Llama."""
_USUAL_LABELS: Final = 2
_LENGTH: Final = 128
_VOCABULARY: Final = 2048
_MICRO_BATCH: Final = 4
"""Of a small recipe."""


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


def shrunk(recipe: Recipe, num_ranks: int = 1) -> Recipe:
    """Return a recipe with narrow layers, as few as its pipeline needs, and short sequences.

    Args:
        recipe: of a described model.
        num_ranks: of the run; with one rank, the layout is that of a single process.
    """
    parallel = recipe.parallel if num_ranks > 1 else ParallelConfig()
    parallel = replace(parallel, layers_per_stage=())
    heads, length = 4 * parallel.tensor_parallel, min(recipe.sequence_length, _LENGTH)
    layers = 2 * parallel.num_stages
    narrow: dict[str, Any] = {
        "num_heads": heads,
        "num_kv_heads": heads,
        "hidden_size": 32 * heads,
        "head_size": None,
        "feed_forward_size": 128 * heads,
    }
    narrow = {key: size for key, size in narrow.items() if hasattr(recipe.model, key)}
    model = replace(recipe.model, num_layers=layers, vocab_size=_VOCABULARY, max_positions=length, **narrow)
    sizes = parallel.sizes(num_ranks)
    micro_batches = 2 * sizes.pipeline * sizes.replicate * sizes.shard
    training = replace(recipe.training, micro_batch_size=_MICRO_BATCH, global_batch_size=_MICRO_BATCH * micro_batches)
    data = replace(recipe.data, train=(), weights=(), validation=None, sequence_length=length)
    again = tuple(layer for layer in recipe.memory.recompute_layers if layer < layers)
    memory = replace(recipe.memory, recompute_layers=again)
    return replace(recipe, model=model, training=training, data=data, memory=memory, parallel=parallel)
