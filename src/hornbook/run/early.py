"""Checks of a start that need only the recipe, the command line and the machine, before torch is imported.

    train gpt3-2.7b --data corpora/mine
        -> a model of 2,651,553,280 parameters takes 39.5 GiB with its gradients and optimizer state, but cpu has ...

The start makes the same checks again, with what it then knows: the data's vocabulary, the connected ranks, the GPUs.
"""

import math
import sys
from pathlib import Path

from hornbook.config import CausalLMConfig, Recipe
from hornbook.config.build import refuse_misfit
from hornbook.config.description import description_of
from hornbook.config.options import is_url
from hornbook.config.sections import DTYPE_BYTES
from hornbook.config.task_names import refuse_unknown_task
from hornbook.corpora.folders import locate_store
from hornbook.errors import UserError
from hornbook.parallel.launched import device_without_torch, rank
from hornbook.storage.files import refuse_file
from hornbook.storage.system import format_bytes
from hornbook.track.environment import memory_bytes
from hornbook.track.units import short


def refuse_early(recipe: Recipe, output: Path, device: str, num_ranks: int) -> None:
    """Raise an error for a recipe that cannot be trained on this machine, as far as it is known without torch.

    Args:
        recipe: without a vocabulary, the token table does not count.
        output: folder of the run.
        device: auto, cpu, cuda or mps.
        num_ranks: of the run, all on such a machine.

    Raises:
        DataError: there is no training data at a path.
        PathError: there is a file in place of the folder, or it is not writable.
        UserError: there is no such device, the ranks do not fit the recipe, a task is unknown, or the model, its
            gradients and optimizer state exceed the memory.
    """
    for path in (Path(entry) for entry in recipe.data.train if not is_url(entry)):
        if isinstance(recipe.objective, CausalLMConfig) or not path.parent.is_dir():
            locate_store(path, "train")
    refuse_file(output, writes=rank() == 0)  # other ranks may only read there
    found = device_without_torch(device)
    refuse_misfit(recipe, num_ranks)
    if "torch" not in sys.modules:  # else a script may have registered tasks of its own
        for name in recipe.evaluation.tasks:
            refuse_unknown_task(name)
    if found == "cpu":
        sizes = recipe.parallel.sizes(num_ranks)
        refuse_oversized(recipe, sizes.pipeline * sizes.shard * sizes.tensor, found, memory_bytes())


def refuse_oversized(recipe: Recipe, num_parts: int, device: str, memory: int | None) -> None:
    """Raise UserError if a part of the model, of its gradients and of its optimizer state exceeds a memory.

    Args:
        recipe: without a vocabulary, the token table does not count.
        num_parts: ranks that hold one copy together.
        device: cpu, cuda or mps.
        memory: of the device, in bytes; None if unknown.
    """
    needed = bytes_of_training(recipe) // num_parts
    if memory is not None and needed > memory:
        fits = f"at most {short(0.9 * recipe.num_parameters() * memory / needed)} parameters would fit"
        can_be_phased = recipe.memory.execution != "phased" and description_of(recipe.model) is not None
        phased = "; or keep the model in files or host memory by `memory.execution='phased'`" if can_be_phased else ""
        raise UserError(
            f"a model of {recipe.num_parameters():,} parameters takes {format_bytes(needed)} with its gradients and "
            f"optimizer state, but {device} has {format_bytes(memory)}: {fits}, with smaller sizes in [model]{phased}"
        )


def bytes_of_training(recipe: Recipe) -> int:
    """Return the bytes of weights, gradients and optimizer state on the device.

    0 for a custom model that does not count its parameters. In phased execution, these are the largest tensor with its
    gradient and the gradient of a micro-batch.
    """
    if recipe.memory.execution == "phased":
        described = description_of(recipe.model)
        largest = max((math.prod(shape) for _, shape in described.shapes()), default=0) if described else 0
        return (recipe.precision.bytes_per_parameter + DTYPE_BYTES[recipe.precision.gradients]) * largest
    states = 0 if recipe.memory.offload_optimizer else recipe.bytes_of_states()
    return recipe.precision.bytes_per_parameter * recipe.num_parameters() + states
