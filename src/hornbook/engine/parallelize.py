"""Split a model over the ranks of a run, in a fixed order of steps and without changes to the model's code.

::

    model on the meta device
      1. tensor parallelism   weights become DTensors, split as the model's description says; a rank has some of the
                              heads and, with sequence parallelism, some of the tokens between layers
      2. compilation          each block's forward pass goes through torch.compile
         recomputation        layers keep fewer activations for the backward pass (`hornbook.engine.activations`)
      3. pipeline             layers become stages; those of other ranks stay on the meta device
      4. sharding             embedding, each block and the head are gathered when they compute (fully_shard, or the
                              home of phased execution)
      -> allocate, initialize: each rank draws a weight whole, keeps its part, and frees the rest

Operators detect split weights by their type (`hornbook.ops.tensor_parallel`), so the same forward pass, objectives and
tasks run on every layout. Replicas, shards and groups of shards are one mesh of two axes.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from hornbook.config import MemoryConfig, Recipe
from hornbook.config.parallel import SPLITS_NO_BACKWARD
from hornbook.engine.activations import offload_layers, recompute_layers
from hornbook.engine.pipeline import Pipeline
from hornbook.errors import UserError
from hornbook.model import LanguageModel
from hornbook.model.attention import SelfAttention
from hornbook.model.group_block import GatedConvolution
from hornbook.model.layers import Dropout, Linear
from hornbook.ops.block_sparse import prepare_compilation
from hornbook.ops.mixed_linear import narrowed
from hornbook.ops.spans import selected
from hornbook.ops.tensor_parallel import Slices, current
from hornbook.optim.slots import num_parts_of
from hornbook.parallel.ranks import Ranks, is_cut, local
from hornbook.parallel.world import World
from hornbook.samples.batches import Batch

_COMPILED = ("gpt", "decoder", "bert", "roberta", "groupbert", "modernbert")
"""Families whose blocks compile without graph breaks."""


def parallelize(
    model: LanguageModel,
    world: World,
    memory: MemoryConfig,
    make_pipeline: Callable[[], Pipeline] | None = None,
    *,
    compiled: bool = False,
    fuses_exchanges: bool = False,
) -> Pipeline | None:
    """Split ``model``, which is on the meta device, over the ranks of ``world``, in place.

    Args:
        model: the whole model.
        world: has the axes.
        memory: options of recomputation, offloading and phased execution.
        make_pipeline: distributes the layers over stages; None without pipeline parallelism.
        compiled: whether to compile each block.
        fuses_exchanges: whether compiled blocks overlap the exchanges of sequence parallelism with products.

    Returns:
        The result of ``make_pipeline``.

    Raises:
        UserError: a weight cannot be split evenly, or a layer cannot recompute its attention.
    """
    if world.tensor.size > 1:
        assert world.mesh is not None
        _split_layers(model, world.mesh["tensor"])
    if world.sequence.size > 1:
        slice_tokens(model, world.sequence, is_fused=fuses_exchanges)
    model.head.vocabulary_chunks = memory.vocabulary_chunks
    if compiled:
        _compile_blocks(model, None if world.is_sharded else gathered_dtype(model, world.device))
    if fuses_exchanges:
        _fuse_exchanges(world.sequence)
    if memory.recompute is not None:
        recompute_layers(model, memory)
    if memory.offload_activations:
        offload_layers(model)
    pipeline = make_pipeline() if make_pipeline else None
    if world.is_sharded:
        assert world.mesh is not None
        mesh, narrow = world.mesh["replicate", "shard"], gathered_dtype(model, world.device)
        if memory.execution == "phased":
            _shard_at_rest(model, mesh)
        elif pipeline is None:
            _shard(model, mesh, narrow)
        else:
            _shard_parts(model, [[*stage.parts, stage] for stage in pipeline.stages], mesh, narrow, stays=True)
            for stage in pipeline.stages:
                stage.register_forward_pre_hook(_as_integer, prepend=True, with_kwargs=True)
    return pipeline


def _split_layers(model: LanguageModel, mesh: DeviceMesh) -> None:
    """Replace the weights of layers by this rank's parts, and limit attention to its heads."""
    from torch.distributed.tensor import Shard

    assert model.description is not None, "the recipe was checked"
    for name, parameter in list(model.own_parameters()):
        dimension = model.description.cut(name)
        if dimension is None:
            continue
        if parameter.shape[dimension] % mesh.size():
            size = parameter.shape[dimension]
            raise UserError(
                f"parallel.tensor_parallel = {mesh.size()} does not divide {name}, {size:,} in memory: choose a divisor"
            )
        _split(model, name, mesh, [Shard(dimension)])
    model.tie()
    for module in model.modules():
        if isinstance(module, SelfAttention):
            module.num_heads //= mesh.size()
            module.num_kv_heads //= mesh.size()
            module.first_head = mesh.get_local_rank() * module.num_heads


def _split(model: LanguageModel, name: str, mesh: DeviceMesh, placements: Sequence[Any]) -> None:
    """Replace a parameter, which is on the meta device, by this rank's part."""
    from torch.distributed.tensor import distribute_tensor

    part = distribute_tensor(model.get_parameter(name).detach(), mesh, placements, src_data_rank=None)
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, nn.Parameter(part))


def compiles_blocks(recipe: Recipe, device: torch.device) -> bool:
    """Return whether to compile blocks: as the recipe says, or by default on a GPU if nothing breaks their graph.

    By default, they are not with sequence parallelism, since compiled blocks keep the gathered tokens.
    """
    if recipe.training.compile != "auto":
        return recipe.training.compile == "blocks"
    memory, parallel = recipe.memory, recipe.parallel
    is_kept = memory.execution == "resident" and memory.recompute in (None, "all") and not memory.offload_activations
    is_whole = not parallel.sequence_parallel and parallel.pipeline_schedule in SPLITS_NO_BACKWARD
    is_known = recipe.model.family in _COMPILED and not recipe.sparsity.is_sparse
    return device.type == "cuda" and is_known and is_kept and is_whole and selected(device)


def _compile_blocks(model: LanguageModel, narrow: torch.dtype | None) -> None:
    """Compile the forward pass of each block; names, parameters and later hooks are unaffected.

    PyTorch caches compiled code on disk, so only the first run waits for the compiler. Blocks differ in their numbers,
    those of their dropouts, which are inputs of the graph, so that all blocks share it. So are the numbers of an
    encoder's rows and tokens, which differ from batch to batch.

    Args:
        model: on the meta device.
        narrow: the dtype in which linear layers find their weights; None for that in which they are kept.
    """
    prepare_compilation()
    torch._dynamo.config.allow_unspec_int_on_nn_module = True
    torch.compiler.config.dynamic_sources = r".*\.(site|index)"
    for block in model.blocks:
        compiled = torch.compile(block.forward, dynamic=None if model.is_causal else True)
        block.forward = compiled if narrow is None else _with_copies(block, compiled, narrow)


def _with_copies(block: nn.Module, forward: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    """Return ``forward`` of a block whose linear layers find copies of their weights in ``dtype``, made once a step.

    A graph in which they are cast does so in every micro-batch, and casts their gradients back.
    """

    def call(*given: Any, **named: Any) -> Any:
        layers = [(module, module.weight) for module in block.modules() if isinstance(module, Linear)]
        try:
            for layer, weight in layers:
                if weight.dtype == torch.float32:
                    layer._parameters["weight"] = narrowed(weight, dtype)  # type: ignore[assignment]
            return forward(*given, **named)
        finally:
            for layer, weight in layers:
                layer._parameters["weight"] = weight  # type: ignore[assignment]

    return call


def _fuse_exchanges(ranks: Ranks) -> None:
    """Let the compiler fuse the exchanges of sequence parallelism with products (Wang et al. 2023).

    A product is then made of parts, and the next part is sent, through memory that GPUs read from each other, while
    one is multiplied: PyTorch's ``fused_all_gather_matmul`` and ``fused_matmul_reduce_scatter``.
    """
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    assert ranks.tensors is not None, "sequence parallelism needs two or more ranks"
    torch._inductor.config._micro_pipeline_tp = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch 2.13: "no need to", but its compiler fuses no others
        enable_symm_mem_for_group(ranks.tensors.group_name)


def gathered_dtype(model: LanguageModel, device: torch.device) -> torch.dtype | None:
    """Return the dtype in which the weights of blocks and head are gathered; None for the dtype in which they are kept.

    On a GPU it is that of the activations: half of the bytes, and no casts. Native operators for CPUs read fp32.
    """
    return model.compute_dtype if device.type == "cuda" and model.compute_dtype != torch.float32 else None


def _shard(model: LanguageModel, mesh: DeviceMesh, narrow: torch.dtype | None) -> None:
    """Shard each part of the model with ``fully_shard``, which gathers weights and reduce-scatters gradients.

    Since each part owns its memory, a tied table is sharded twice: the head's shard is updated from the embedding's
    before each forward pass.
    """
    model.head.hold_copy()
    model.register_forward_pre_hook(lambda model, _: model.tie())
    model.register_forward_pre_hook(_show_batch)
    _shard_parts(model, [[model.embedding, *model.blocks, model.head, model]], mesh, narrow)
    model.register_forward_pre_hook(_hide_batch, prepend=True)


def _shard_parts(
    model: LanguageModel,
    groups: Sequence[Sequence[nn.Module]],
    mesh: DeviceMesh,
    narrow: torch.dtype | None,
    *,
    stays: bool = False,
) -> None:
    """Shard the modules of each group in order; the last one contains the others.

    Args:
        model: has the names of the parameters.
        groups: of modules.
        mesh: of replicas and shards.
        narrow: see ``gathered_dtype``; the embedding sums its tables in fp32. Gradients are summed in fp32.
        stays: whether to keep gathered weights from the forward pass to the backward pass.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    placements = {
        id(parameter): _placement(name, parameter, mesh.size(1)) for name, parameter in model.named_parameters()
    }
    for parts in groups:
        for part in parts:
            fully_shard(
                part,
                mesh=mesh,
                mp_policy=MixedPrecisionPolicy(
                    param_dtype=None if part is model.embedding else narrow,
                    reduce_dtype=None if narrow is None else torch.float32,
                    cast_forward_inputs=False,
                ),
                shard_placement_fn=lambda parameter: placements[id(parameter)],
                reshard_after_forward=False if stays else None,
            )
        for module in parts[-1].modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # the loss is divided by global counts
                module.set_force_sum_reduction_for_comms(True)  # gloo has no reduction with a factor


def _shard_at_rest(model: LanguageModel, mesh: DeviceMesh) -> None:
    """Shard the stored weights of phased execution, which gathers them to compute."""
    from torch.distributed.tensor import Replicate

    for name, parameter in list(model.own_parameters()):
        _split(model, name, mesh, [Replicate(), _placement(name, parameter, mesh.size(1))])
    model.tie()


def _placement(name: str, parameter: nn.Parameter, num_shards: int) -> Any:
    """Return the dimension to shard: the first that is divisible and does not enumerate stacked parameters.

    A dimension that tensor parallelism has split is sharded only if no other is divisible.

    Raises:
        UserError: no dimension is divisible, and the parameter cannot have parts of different sizes.
    """
    from torch.distributed.tensor import Shard

    part = local(parameter.detach())
    split = [placement.dim for placement in getattr(parameter, "placements", ())]
    first = 1 if num_parts_of(name) > 1 else 0
    divisible = [dim for dim in range(first, part.dim()) if part.shape[dim] % num_shards == 0]
    if divisible:
        return Shard(min(divisible, key=lambda dim: dim in split))
    if first or is_cut(parameter):
        raise UserError(
            f"{num_shards} shards cannot divide {name}, of shape {list(part.shape)}: change the sizes in [parallel]"
        )
    return Shard(0)


def _hide_batch(model: nn.Module, arguments: tuple[Any, Batch]) -> tuple[Any, Callable[[], Batch]]:
    """Wrap a batch in a function: the outermost sharded module would move its host indices to the device."""
    use, batch = arguments
    return use, lambda: batch


def _show_batch(model: nn.Module, arguments: tuple[Any, Callable[[], Batch]]) -> tuple[Any, Batch]:
    use, hidden = arguments
    return use, hidden()


def _as_integer(stage: nn.Module, wires: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Convert the number of a micro-batch to an integer, since a sharded stage would move a tensor to its device."""
    return wires, {"number": int(named["number"])}


def slice_tokens(model: LanguageModel, ranks: Ranks, *, is_fused: bool = False) -> None:
    """Add hooks to ``model`` so that each of ``ranks`` computes a slice of the tokens between split layers.

    ::

        tokens --embedding--> slice --block--> slice --block--> slice --gather--> head
                                      norm, residual connection, dropout: slice
                                      attention, feed-forward: all tokens, a part of the features

    The layers gather the tokens and scatter the sums (`hornbook.ops.tensor_parallel`). The hooks set the number of
    tokens for them and slice the other per-token tensors: positions, segments, and the keys of residual dropout, so
    that the same elements are dropped. GroupBERT's convolution needs neighboring tokens, so it gathers all tokens and
    slices its output. The head gathers all tokens: it selects some of them, and its ranks share the vocabulary.

    The gradients of norms, biases and position tables come from a slice, so they are summed over the ranks
    (`hornbook.config.description.Description.sees_slice`).
    """
    hooks = _Hooks(ranks, is_fused)
    model.embedding.register_forward_pre_hook(hooks.begin_embedding)
    model.head.register_forward_pre_hook(hooks.gather_for_head)
    for block in model.blocks:
        block.register_forward_pre_hook(hooks.begin_block)
    for module in (model.embedding, *model.blocks):
        module.register_forward_hook(hooks.end, always_call=True)
    for module in model.blocks.modules():
        if isinstance(module, Dropout):
            module.register_forward_pre_hook(hooks.slice_keys)
        elif isinstance(module, GatedConvolution):
            module.register_forward_pre_hook(hooks.gather)
            module.register_forward_hook(hooks.slice_output)


class _Hooks:
    """The forward hooks of a model's modules; batches have the shape ``[B, T, ...]``, slices ``[B, t, ...]``.

    Args:
        ranks: those that share the tokens.
        is_fused: see `Slices`.
    """

    def __init__(self, ranks: Ranks, is_fused: bool) -> None:
        self._ranks, self._is_fused = ranks, is_fused

    def begin_embedding(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        tokens_BT, *of_tokens = given
        current.slices = slices = self._slices(tokens_BT)
        return tokens_BT, *(None if tensor_BT is None else slices.own(tensor_BT) for tensor_BT in of_tokens)

    def begin_block(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        _, context = given
        current.slices = self._slices(context["keys"])

    def end(self, module: nn.Module, given: tuple[Any, ...], result: Tensor) -> None:
        current.slices = None

    def gather_for_head(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        use, x_BtD, batch = given
        return use, self._slices(batch["tokens"]).whole(x_BtD), batch

    def slice_keys(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x_BtD, keys_BT, *residual = given
        return x_BtD, _current().own(keys_BT), *residual

    def gather(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x_BtD, context = given
        return _current().enter(x_BtD), context

    def slice_output(self, module: nn.Module, given: tuple[Any, ...], result_BTD: Tensor) -> Tensor:
        return _current().own(result_BTD)

    def _slices(self, tokens_BT: Tensor) -> Slices:
        group = self._ranks.tensors
        assert group is not None, "sequence parallelism needs two or more ranks"
        return Slices(tokens_BT.shape[1], self._ranks.rank, self._ranks.size, group, self._is_fused)


def _current() -> Slices:
    assert current.slices is not None, "called outside of a block"
    return current.slices
