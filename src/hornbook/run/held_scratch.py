"""The scratch files of phased execution: their location and size."""

from pathlib import Path

from hornbook.config import Recipe
from hornbook.config.shapes import padded_rows
from hornbook.parallel.device import DTYPES, compute_dtype
from hornbook.parallel.world import World
from hornbook.storage.files import make_directory
from hornbook.storage.scratch import require_scratch


def folder_for_scratch(recipe: Recipe, output: Path, world: World) -> Path:
    """Return the folder for this rank's files of phased execution, created if missing.

    Args:
        recipe: complete, with a vocabulary.
        output: the run's folder, for a recipe without ``memory.scratch``.
        world: the run's ranks.

    Raises:
        StorageError: the disk has too little free space, or the folder cannot be created.
    """
    folder = scratch_base(recipe, output)
    require_scratch(folder, bytes_of_scratch(recipe, world))
    make_directory(folder)
    return folder


def scratch_base(recipe: Recipe, output: Path) -> Path:
    """Return the folder of all ranks' scratch files; ``output`` is the run's folder."""
    return Path(recipe.memory.scratch or output)


def bytes_of_scratch(recipe: Recipe, world: World) -> int:
    """Return the bytes that phased execution keeps off the device on each rank, for batches without padding.

    These are the state, a tied table's second gradient, and the hidden states between layers of all micro-batches.

    Args:
        recipe: complete, with a vocabulary; sizes that a custom model does not state do not count.
        world: the run's ranks.
    """
    model, precision = recipe.model, recipe.precision
    hidden_size, num_layers = (getattr(model, name, 0) for name in ("hidden_size", "num_layers"))
    state = precision.bytes_per_parameter * recipe.num_parameters() + recipe.bytes_of_states()
    table = padded_rows(model.vocab_size or 0) * hidden_size * DTYPES[precision.gradients].itemsize
    tokens = recipe.training.global_batch_size // world.data.size * recipe.sequence_length
    row = tokens * hidden_size * compute_dtype(precision.compute, world.device).itemsize
    return int(state // world.holders.size + table + (num_layers + 2) * row)
