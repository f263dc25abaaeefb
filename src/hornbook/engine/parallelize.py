"""Parallelism from outside: one ordered place cuts a model over the ranks of a run; the model does not know of it.

::

    model on the meta device
      1. tensor parallelism   layers become DTensors, cut as `hornbook.config.parallel` says; a rank has its own heads
      2. sharding             embedding, each block and the head are gathered when they compute (fully_shard)
      -> allocate, initialize: each rank draws a weight whole, keeps its part, and frees the rest

Operators tell a cut weight by its type (`hornbook.ops.tensor_parallel`), so a forward pass, an objective and a task run
on every layout. Replicas, shards and groups of shards are one mesh of two axes.
"""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from hornbook.config.parallel import cut_dimension
from hornbook.errors import UserError
from hornbook.model import LanguageModel
from hornbook.model.attention import SelfAttention
from hornbook.optim.slots import num_parts_of
from hornbook.parallel.cuts import is_cut, local
from hornbook.parallel.world import World
from hornbook.samples.batches import Batch


def parallelize(model: LanguageModel, world: World) -> None:
    """Cut ``model``, which is on the meta device, over the ranks of ``world``, in place.

    Raises:
        UserError: a weight does not divide into equal parts.
    """
    assert world.mesh is not None, "one rank alone cuts nothing"
    if world.tensor.size > 1:
        _split_layers(model, world.mesh["tensor"])
    if world.holders.size > world.tensor.size:
        _shard(model, world.mesh["replicate", "shard"])


def _split_layers(model: LanguageModel, mesh: DeviceMesh) -> None:
    """Replace the weights of layers by their parts; attention computes the heads of this rank."""
    from torch.distributed.tensor import Shard, distribute_tensor

    for name, parameter in list(model.own_parameters()):
        dimension = cut_dimension(name)
        if dimension is None:
            continue
        if parameter.shape[dimension] % mesh.size():
            size = parameter.shape[dimension]
            raise UserError(
                f"parallel.tensor_parallel = {mesh.size()} does not divide {name}, {size:,} in memory: choose a divisor"
            )
        part = distribute_tensor(parameter.detach(), mesh, [Shard(dimension)], src_data_rank=None)
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, nn.Parameter(part))
    model.tie()
    for module in model.modules():
        if isinstance(module, SelfAttention):
            module.num_heads //= mesh.size()
            module.first_head = mesh.get_local_rank() * module.num_heads


def _shard(model: LanguageModel, mesh: DeviceMesh) -> None:
    """Let each part of the model be gathered when it computes, and its gradients be summed and cut again.

    A tied table has two shards here, since a part owns its memory: the head's follows the embedding's before each
    forward pass.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard

    model.head.hold_copy()
    model.register_forward_pre_hook(lambda model, _: model.tie())
    model.register_forward_pre_hook(_show_batch)
    placements = {
        id(parameter): _placement(name, parameter, mesh.size(1)) for name, parameter in model.named_parameters()
    }
    for part in (model.embedding, *model.blocks, model.head, model):
        fully_shard(part, mesh=mesh, shard_placement_fn=lambda parameter: placements[id(parameter)])
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # the loss is divided by global counts
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply while it adds
    model.register_forward_pre_hook(_hide_batch, prepend=True)


def _placement(name: str, parameter: nn.Parameter, num_shards: int) -> Any:
    """Return the dimension to shard: the first that divides, is not cut yet and tells no stacked parameters apart.

    A dimension that tensor parallelism has cut is cut once more if no other divides.

    Raises:
        UserError: no dimension divides, and the parameter cannot have parts of different sizes.
    """
    from torch.distributed.tensor import Shard

    part = local(parameter.detach())
    cut = [placement.dim for placement in getattr(parameter, "placements", ())]
    first = 1 if num_parts_of(name) > 1 else 0
    fitting = [dim for dim in range(first, part.dim()) if part.shape[dim] % num_shards == 0]
    if fitting:
        return Shard(min(fitting, key=lambda dim: dim in cut))
    if first or is_cut(parameter):
        raise UserError(f"{num_shards} shards cannot divide {name} {list(part.shape)}: change the sizes in [parallel]")
    return Shard(0)


def _hide_batch(model: nn.Module, arguments: tuple[Any, Batch]) -> tuple[Any, Callable[[], Batch]]:
    """Wrap a batch, whose indices stay in the host's memory: the outermost sharded module moves tensors it finds."""
    use, batch = arguments
    return use, lambda: batch


def _show_batch(model: nn.Module, arguments: tuple[Any, Callable[[], Batch]]) -> tuple[Any, Batch]:
    use, hidden = arguments
    return use, hidden()
