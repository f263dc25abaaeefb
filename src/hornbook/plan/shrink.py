"""Shrink a recipe to a small model with the same parts, whose steps take about a second."""

from dataclasses import replace
from typing import Any, Final

from hornbook.config.parallel import ParallelConfig
from hornbook.config.recipe import Recipe

_LENGTH: Final = 128
_VOCABULARY: Final = 2048
_MICRO_BATCH: Final = 4


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
