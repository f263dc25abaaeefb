"""The files of phased execution: where a run has them, how large they become, and who removes them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hornbook.config import Recipe
from hornbook.config.shapes import padded_rows
from hornbook.engine.build_training import needs_files
from hornbook.optim.updates import build_update
from hornbook.parallel.device import DTYPES, compute_dtype
from hornbook.parallel.world import World
from hornbook.storage.scratch import remove_leftovers, scratch_folder, scratch_path


@contextmanager
def held_scratch(recipe: Recipe, output: Path, world: World) -> Iterator[Path | None]:
    """Give each rank a folder of its own for the files of phased execution, None where there are none.

    The folder is removed on leaving. What a run left that was killed is removed first, whether there are files or not.

    Args:
        recipe: complete, with a vocabulary.
        output: the run's folder, for a recipe without ``memory.scratch``.
        world: of the run.

    Raises:
        UserError: another process holds the folder.
        StorageError: the disk has too little room.
    """
    base = scratch_base(recipe, output)
    if world.is_first:
        remove_leftovers(base)
    if not needs_files(recipe, world.device):
        yield None
        return
    world.barrier()  # the first rank would remove what others make
    with scratch_folder(scratch_path(base, world.rank), bytes_of_scratch(recipe, world)) as folder:
        yield folder


def scratch_base(recipe: Recipe, output: Path) -> Path:
    """Return the folder that holds the scratch folder of each rank; ``output`` is the run's own."""
    return Path(recipe.memory.scratch or output)


def bytes_of_scratch(recipe: Recipe, world: World) -> int:
    """Return the bytes that phased execution keeps off the device on each rank, as long as a batch has no padding.

    That is the state, a tied table's second gradient, and the hidden states between layers of all micro-batches.

    Args:
        recipe: complete, with a vocabulary; what a model of one's own does not tell does not count.
        world: of the run.
    """
    model, precision = recipe.model, recipe.precision
    hidden_size, num_layers = (getattr(model, name, 0) for name in ("hidden_size", "num_layers"))
    state = precision.bytes_per_parameter(build_update(recipe.optimizer).state_names) * recipe.num_parameters()
    table = padded_rows(model.vocab_size or 0) * hidden_size * DTYPES[precision.gradients].itemsize
    tokens = recipe.training.global_batch_size // world.data.size * recipe.sequence_length
    row = tokens * hidden_size * compute_dtype(precision.compute, world.device).itemsize
    return int(state // world.holders.size + table + (num_layers + 2) * row)
