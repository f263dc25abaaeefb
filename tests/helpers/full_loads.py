"""What a rank computes in a step whose sequences are all full."""

from hornbook.config import Recipe
from hornbook.config.communication import Load


def load_of(recipe: Recipe, num_ranks: int, itemsize: int) -> Load:
    """Return the load of full sequences."""
    training, sizes = recipe.training, recipe.parallel.sizes(num_ranks)
    tokens = training.micro_batch_size * recipe.sequence_length
    ranks = sizes.replicate * sizes.shard
    return Load(
        num_micro_batches=training.global_batch_size // (ranks * training.micro_batch_size),
        tokens=tokens,
        scored=tokens * getattr(recipe.objective, "scored_share", 1.0),
        itemsize=itemsize,
    )
