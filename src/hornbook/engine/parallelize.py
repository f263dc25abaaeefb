"""Parallelism from outside: one ordered place cuts a model over the ranks of a run; the model does not know of it.

::

    model on the meta device
      1. tensor parallelism   layers become DTensors, cut as `hornbook.config.parallel` says; a rank has its own heads
                              and, with sequence parallelism, its own tokens between them
      2. compilation          each block's forward pass goes through torch.compile
         recomputation        layers keep fewer activations for the backward pass (`hornbook.engine.activations`)
      3. pipeline             layers become stages; those of other ranks stay on the meta device
      4. sharding             embedding, each block and the head are gathered when they compute (fully_shard, or the
                              home of phased execution)
      -> allocate, initialize: each rank draws a weight whole, keeps its part, and frees the rest

Operators tell a cut weight by its type (`hornbook.ops.tensor_parallel`), so a forward pass, an objective and a task run
on every layout. Replicas, shards and groups of shards are one mesh of two axes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from hornbook.config import MemoryConfig
from hornbook.config.parallel import cut_dimension
from hornbook.engine.activations import offload_layers, recompute_layers
from hornbook.engine.executors.pipeline import Pipeline
from hornbook.engine.sequence_parallel import slice_tokens
from hornbook.errors import UserError
from hornbook.model import LanguageModel
from hornbook.model.attention import SelfAttention
from hornbook.ops.block_sparse import prepare_compilation
from hornbook.optim.slots import num_parts_of
from hornbook.parallel.ranks import is_cut, local
from hornbook.parallel.world import World
from hornbook.samples.batches import Batch


def parallelize(
    model: LanguageModel,
    world: World,
    memory: MemoryConfig,
    make_pipeline: Callable[[], Pipeline] | None = None,
    *,
    compiled: bool = False,
) -> Pipeline | None:
    """Cut ``model``, which is on the meta device, over the ranks of ``world``, in place.

    Args:
        model: all of it.
        world: gives the axes.
        memory: what is kept on the device and what is not.
        make_pipeline: spreads the layers over stages; None where there is one.
        compiled: whether each block is compiled.

    Returns:
        What ``make_pipeline`` made.

    Raises:
        UserError: a weight does not divide into equal parts, or a layer cannot recompute what it is to.
    """
    if world.tensor.size > 1:
        assert world.mesh is not None
        _split_layers(model, world.mesh["tensor"])
    if world.sequence.size > 1:
        slice_tokens(model, world.sequence)
    model.head.vocabulary_chunks = memory.vocabulary_chunks
    if compiled:
        _compile_blocks(model)
    if memory.recompute is not None:
        recompute_layers(model, memory)
    if memory.offload_activations:
        offload_layers(model)
    pipeline = make_pipeline() if make_pipeline else None
    if world.is_sharded:
        assert world.mesh is not None
        mesh = world.mesh["replicate", "shard"]
        if memory.execution == "phased":
            _shard_at_rest(model, mesh)
        elif pipeline is None:
            _shard(model, mesh)
        else:
            _shard_parts(model, [[*stage.parts, stage] for stage in pipeline.stages], mesh, stays=True)
            for stage in pipeline.stages:
                stage.register_forward_pre_hook(_as_integer, prepend=True, with_kwargs=True)
    return pipeline


def _split_layers(model: LanguageModel, mesh: DeviceMesh) -> None:
    """Replace the weights of layers by their parts; attention computes the heads of this rank."""
    from torch.distributed.tensor import Shard

    for name, parameter in list(model.own_parameters()):
        dimension = cut_dimension(name)
        if dimension is None:
            continue
        if parameter.shape[dimension] % mesh.size():
            size = parameter.shape[dimension]
            raise UserError(
                f"parallel.tensor_parallel = {mesh.size()} does not divide {name}, {size:,} in memory: choose a divisor"
            )
        _cut(model, name, mesh, [Shard(dimension)])
    model.tie()
    for module in model.modules():
        if isinstance(module, SelfAttention):
            module.num_heads //= mesh.size()
            module.first_head = mesh.get_local_rank() * module.num_heads


def _cut(model: LanguageModel, name: str, mesh: DeviceMesh, placements: Sequence[Any]) -> None:
    """Replace a parameter, which is on the meta device, by the part of it that this rank holds."""
    from torch.distributed.tensor import distribute_tensor

    part = distribute_tensor(model.get_parameter(name).detach(), mesh, placements, src_data_rank=None)
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, nn.Parameter(part))


def _compile_blocks(model: LanguageModel) -> None:
    """Let each block compute by ``torch.compile``; names, parameters and the hooks of other steps stay as they are.

    PyTorch keeps what it compiles in its cache on disk, so that only the first run waits for the compiler.
    """
    prepare_compilation()
    for block in model.blocks:
        block.forward = torch.compile(block.forward)


def _shard(model: LanguageModel, mesh: DeviceMesh) -> None:
    """Let each part of the model be gathered when it computes, and its gradients be summed and cut again.

    A tied table has two shards here, since a part owns its memory: the head's follows the embedding's before each
    forward pass.
    """
    model.head.hold_copy()
    model.register_forward_pre_hook(lambda model, _: model.tie())
    model.register_forward_pre_hook(_show_batch)
    _shard_parts(model, [[model.embedding, *model.blocks, model.head, model]], mesh)
    model.register_forward_pre_hook(_hide_batch, prepend=True)


def _shard_parts(
    model: LanguageModel, groups: Sequence[Sequence[nn.Module]], mesh: DeviceMesh, *, stays: bool = False
) -> None:
    """Shard the modules of each group one by one; the last one contains the others.

    Args:
        model: names the parameters.
        groups: modules.
        mesh: replicas and shards.
        stays: whether weights that were gathered for a forward pass stay for the backward pass.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard

    placements = {
        id(parameter): _placement(name, parameter, mesh.size(1)) for name, parameter in model.named_parameters()
    }
    for parts in groups:
        for part in parts:
            fully_shard(
                part,
                mesh=mesh,
                shard_placement_fn=lambda parameter: placements[id(parameter)],
                reshard_after_forward=False if stays else None,
            )
        for module in parts[-1].modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # the loss is divided by global counts
                module.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply while it adds


def _shard_at_rest(model: LanguageModel, mesh: DeviceMesh) -> None:
    """Let each rank hold a part of each weight, which whoever computes with it gathers."""
    from torch.distributed.tensor import Replicate

    for name, parameter in list(model.own_parameters()):
        _cut(model, name, mesh, [Replicate(), _placement(name, parameter, mesh.size(1))])
    model.tie()


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


def _as_integer(stage: nn.Module, wires: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Turn the number of a micro-batch into an integer, which the sharded stage does not move to its device."""
    return wires, {"number": int(named["number"])}
