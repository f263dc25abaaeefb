"""Whether a recipe's global batch divides among a number of ranks, known before torch is imported."""

from hornbook.config.parallel import rounds_of
from hornbook.config.recipe import Recipe
from hornbook.errors import UserError
from hornbook.wording import counted


def refuse_uneven(global_batch_size: int, micro_batch_size: int, world_size: int) -> None:
    """Raise UserError if a global batch does not divide into whole micro-batches for every rank."""
    if global_batch_size < 1 or global_batch_size % (micro_batch_size * world_size):
        raise UserError(
            f"global_batch_size {global_batch_size} does not divide into micro-batches of {micro_batch_size} on "
            f"{counted(world_size, 'rank')}: {_what_divides(global_batch_size, micro_batch_size, world_size)}"
        )


def refuse_misfit(recipe: Recipe, num_ranks: int) -> None:
    """Check the number of ranks and of pipeline micro-batches against a recipe, before any rank is connected.

    Raises:
        UserError: the sizes in ``[parallel]`` do not multiply to the number of ranks, the global batch does not divide
            among them, or it has too few micro-batches for the stages of a pipeline.
    """
    training, sizes = recipe.training, recipe.parallel.sizes(num_ranks)
    num_shares = sizes.replicate * sizes.shard
    refuse_uneven(training.global_batch_size, training.micro_batch_size, num_shares)
    if sizes.pipeline > 1:
        num_batches = training.global_batch_size // (training.micro_batch_size * num_shares)
        rounds_of(num_batches, sizes.pipeline, recipe.parallel.pipeline_schedule)


def _what_divides(global_batch_size: int, micro_batch_size: int, world_size: int) -> str:
    """Suggest the largest smaller micro-batch that divides, since training is the same, or else a global batch."""
    sizes = range(min(micro_batch_size, global_batch_size), 0, -1)
    fitting = next((size for size in sizes if global_batch_size % (size * world_size) == 0), None)
    if fitting:
        return f"set training.micro_batch_size to {fitting}, which does not change the training"
    share = global_batch_size // world_size
    multiples = sorted({max(share, 1) * world_size, (share + 1) * world_size})
    return f"take a multiple of {world_size}, such as {' or '.join(map(str, multiples))}"
