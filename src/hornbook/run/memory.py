"""What cannot fit into memory is refused before anything is built or written.

Both bounds are lower ones: activations, logits and the batches that are made ahead come on top of them. So what is
refused could not have run, and what passes may still be too large.
"""

import torch

from hornbook.config import Recipe
from hornbook.errors import UserError
from hornbook.optim.updates import build_update
from hornbook.parallel.world import World
from hornbook.samples.batches import Samples
from hornbook.storage.system import format_bytes
from hornbook.track.environment import memory_bytes

_BYTES_OF_ID = 8
_BYTES_OF_WEIGHT = 4


def refuse_oversize(recipe: Recipe, samples: Samples, world: World) -> None:
    """Refuse a model or a batch for which the memory of this rank cannot suffice.

    Args:
        recipe: complete, with a vocabulary.
        samples: of the run; they tell the tokens of a batch.
        world: of the run; gives the device and the number of ranks.

    Raises:
        UserError: the model with gradients and optimizer state, or the token ids of a step, are larger than the memory.
    """
    host = memory_bytes()
    on_gpu = world.device.type == "cuda"
    device = torch.cuda.get_device_properties(world.device).total_memory if on_gpu else host
    num_parameters = getattr(recipe.model, "num_parameters", lambda: 0)()  # a model of one's own may not count
    needed = _BYTES_OF_WEIGHT * num_parameters * (2 + len(build_update(recipe.optimizer).state_names))
    needed //= world.holders.size
    if device is not None and needed > device:
        raise UserError(
            f"a model of {num_parameters:,} parameters takes {format_bytes(needed)} with its gradients and optimizer "
            f"state, and {world.device.type} has {format_bytes(device)}: check the sizes in [model]"
        )
    batch = recipe.training.global_batch_size
    ids = int(_BYTES_OF_ID * samples.tokens_per_sample * batch / world.data.size)
    if host is not None and ids > host:
        raise UserError(
            f"training.global_batch_size = {batch:,}: the token ids of one step take {format_bytes(ids)} on each "
            f"rank, and this machine has {format_bytes(host)}: lower it"
        )
