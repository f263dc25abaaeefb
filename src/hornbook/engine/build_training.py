"""Build the parts of a training from a recipe and its data; each section's dataclass selects a builder.

::

    [objective]                            samples
    causal_lm            windows of the token stream
    mlm                  texts with masks            } padded, packed or unpadded
    mlm_nsp              pairs of texts with masks   }

Custom objectives train on windows.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from hornbook.config import LabelledConfig, MaskingConfig, MemoryConfig, MuonConfig, PrecisionConfig, Recipe
from hornbook.config.description import description_of
from hornbook.config.optimizers import read_steps
from hornbook.config.parts import FeedForward
from hornbook.engine.home import Home, InMemory, zeros
from hornbook.engine.loss_scale import FIRST_SCALE, DynamicScale, HistogramScale, LossScale, StaticScale
from hornbook.engine.narrow_home import NarrowHome, store_weights
from hornbook.engine.parallelize import compiles_blocks, parallelize
from hornbook.engine.phased import Phased
from hornbook.engine.phased_home import PhasedHome
from hornbook.engine.pipeline import Pipeline
from hornbook.engine.spaces import FileSpace, PinnedSpace, Space
from hornbook.engine.state import TrainState
from hornbook.engine.step import StepConfig, resident
from hornbook.engine.topology import Topology, with_blocks
from hornbook.errors import UserError
from hornbook.model import LanguageModel, initialize, model_of
from hornbook.model.language_model import forward_resident, forward_split
from hornbook.objective import OBJECTIVES, build_objective
from hornbook.ops.layers import ACTIVATIONS
from hornbook.ops.native.build import HALVES
from hornbook.ops.native.choice import choose
from hornbook.ops.native.kernels import instruction_sets, use
from hornbook.ops.native.trials import DEFAULT_SHAPE, Shape
from hornbook.optim.schedules import build_schedule
from hornbook.optim.updates import UPDATES, Update, build_update, in_groups, with_heads
from hornbook.parallel.device import DTYPES, add_up_in, compute_dtype, return_large_buffers
from hornbook.parallel.world import World
from hornbook.samples.batches import Loader, Samples
from hornbook.samples.sources import Sources, network_facts, window_samples
from hornbook.storage.scratch import ScratchFile

_ZERO_BUBBLE_SINCE = (2, 13)
"""In PyTorch 2.11, its backward pass fails for custom autograd functions, and a rank cannot send to itself."""


def build_samples(recipe: Recipe, sources: Sources, *, on_cpu: bool) -> Samples:
    """Return the samples for the recipe's objective.

    Args:
        recipe: complete, with a vocabulary.
        sources: the opened stores.
        on_cpu: whether the model runs on a CPU, which affects the default layout of an encoder's batches.

    Raises:
        UserError, DataError: the stores do not suit the objective.
    """
    if isinstance(recipe.objective, LabelledConfig):
        from hornbook.samples.labelled_samples import LabelledSources, labelled_samples

        assert isinstance(sources, LabelledSources)
        return labelled_samples(recipe, sources, on_cpu=on_cpu)
    if isinstance(recipe.objective, MaskingConfig):
        from hornbook.samples.encoder_samples import encoder_samples

        samples = encoder_samples(recipe.objective, recipe, sources, on_cpu=on_cpu)
    else:
        samples = window_samples(recipe, sources)
    return replace(samples, facts={**samples.facts, **network_facts(recipe, sources)})


def num_steps(recipe: Recipe, samples: Samples) -> int:
    """Return the length of the run in steps, given in steps, tokens or epochs in the recipe."""
    training = recipe.training
    if training.steps is not None:
        return training.steps
    if training.tokens is not None:
        return math.ceil(training.tokens / (training.global_batch_size * samples.tokens_per_sample))
    assert training.epochs is not None, "the validator requires exactly one length"
    return math.ceil(training.epochs * samples.num_samples / training.global_batch_size)


def build_loader(
    recipe: Recipe,
    samples: Samples,
    world: World,
    *,
    start_sample: int = 0,
    vocab_size: int | None = None,
    prefetch: int = 2,
) -> Loader:
    """Return the loader of this rank's micro-batches, step by step.

    Args:
        recipe: has the batch sizes.
        samples: from ``build_samples``.
        world: determines this rank's share; for a GPU, batches are in pinned memory.
        start_sample: number of the first sample.
        vocab_size: ``num_ids`` of the model, to reject larger tokens; None accepts all.
        prefetch: number of steps to prepare in advance.
    """
    return Loader(
        samples.maker,
        global_batch_size=recipe.training.global_batch_size,
        micro_batch_size=recipe.training.micro_batch_size,
        rank=world.data.rank,
        world_size=world.data.size,
        start_sample=start_sample,
        vocab_size=None if samples.ids_are_checked else vocab_size,
        num_segments=getattr(recipe.model, "num_segments", 1),
        pin_memory=world.device.type == "cuda",
        prefetch=prefetch,
    )


def build_training(
    recipe: Recipe,
    num_steps: int,
    world: World,
    forms: Mapping[str, str] | None = None,
    scratch: Path | None = None,
) -> tuple[TrainState, StepConfig]:
    """Return the state before the first step, on the world's device, and the fixed parts of a step.

    This also sets the process's operators to ``precision.kernels``, and their accumulation to ``precision.partials``.

    Args:
        recipe: complete, with a vocabulary.
        num_steps: length of the run, for the schedule.
        world: has the device and the axes over which the model is split.
        forms: of the native kernels that the run used before; None for a new run.
        scratch: existing folder for the unnamed files of phased execution; None for ``memory.scratch`` or the system's
            folder for temporary files.

    Raises:
        UserError: the model cannot be split so, or the sizes in ``[parallel]`` do not match the number of ranks.
        StorageError: the disk has not enough space for the files of phased execution.
    """
    refuse_layout(recipe, world)
    refuse_options_of_gpus(recipe, world.device)
    precision, dtype = recipe.precision, compute_dtype(recipe.precision.compute, world.device)
    if world.device.type == "cuda":
        add_up_in(precision.partials)
    _use_kernels(recipe, world, dtype, forms)
    with torch.device("meta"):
        model = model_of(recipe, dtype)
    if precision.weights != "fp32":
        store_weights(model, DTYPES[precision.weights])
    names = [name for name, _ in model.own_parameters()]
    update = in_groups(build_update(recipe.optimizer), recipe.optimizer, names)
    if isinstance(recipe.optimizer, MuonConfig) and recipe.optimizer.per_head:
        update = with_heads(update, model.description)
    elsewhere = place(model, update, recipe, world, scratch)
    initialize(model, recipe.training.seed)
    topology = None
    if recipe.sparsity.is_sparse:
        update = with_blocks(update, model, recipe.sparsity)
        topology = Topology.of(model, recipe.sparsity, num_steps=num_steps, seed=recipe.training.seed, world=world)
    factor, peak = build_schedule(recipe.schedule, num_steps), recipe.optimizer.learning_rate
    config = StepConfig(
        objective=build_objective(recipe.objective),
        update=update,
        schedule=lambda index: peak * factor(index),
        clip_norm=recipe.optimizer.clip_norm,
        clip_scope=getattr(recipe.optimizer, "clip_scope", "global"),  # custom optimizers may not have it
        loss_scale=build_loss_scale(precision, model, world),
        world=world,
        executor=elsewhere or partial(resident, whole_gradients=recipe.parallel.sum_gradients == "step"),
        topology=topology,
        forward=elsewhere.forward if elsewhere else forward_resident if world.mesh is None else forward_split,
    )
    home: Home = elsewhere.home if isinstance(elsewhere, Phased) else home_of(model, update, recipe, world)
    return TrainState(model=model, home=home), config


def _use_kernels(recipe: Recipe, world: World, dtype: torch.dtype, forms: Mapping[str, str] | None) -> None:
    """Select the process's kernels, those of the first rank on all ranks, whose trials may end differently."""
    select = partial(
        choose,
        recipe.precision.kernels,
        world.device,
        dtype,
        partials=recipe.precision.partials,
        blocks=recipe.sparsity.kernel if recipe.sparsity.linears else None,
        shape=shape_of(recipe),
    )
    kernels = select(earlier=forms)
    first = world.everyone.share(kernels.record, 0)
    use(kernels if kernels.record == first else select(earlier=first))


def place(
    model: LanguageModel, update: Update, recipe: Recipe, world: World, scratch: Path | None = None
) -> Pipeline | Phased | None:
    """Split ``model``, which is on the meta device, over the ranks, and allocate this rank's part in memory or files.

    Returns:
        The executor of a model that is not entirely on the device; None if it is, or if PyTorch gathers it.
    """
    pipeline, is_pipelined, is_compiled = None, world.pipeline.size > 1, compiles_blocks(recipe, world.device)
    if is_pipelined or world.holders.size > 1 or is_compiled or recipe.memory != MemoryConfig():
        make_pipeline = partial(build_pipeline, model, recipe, world) if is_pipelined else None
        fuses = recipe.parallel.async_tensor_parallel
        pipeline = parallelize(model, world, recipe.memory, make_pipeline, compiled=is_compiled, fuses_exchanges=fuses)
    if recipe.memory.execution == "phased":
        return build_phased(model, update, recipe, world, scratch)
    model.allocate(world.device, pipeline.stages if pipeline else None)
    return pipeline


def home_of(model: LanguageModel, update: Update, recipe: Recipe, world: World) -> Home:
    """Return the home of a new training, in the dtypes of ``recipe``; ``model`` is in memory, moments are zero."""
    if recipe.precision.is_plain and not recipe.memory.offload_optimizer:
        moments = {name: zeros(name, parameter, update) for name, parameter in model.own_parameters()}
        return InMemory(model, moments, world)
    return NarrowHome(model, update, recipe, world)


def build_loss_scale(config: PrecisionConfig, model: LanguageModel, world: World) -> LossScale | None:
    """Return the loss scale of a recipe; None if it is always 1."""
    kind, first = config.effective_loss_scaling, config.loss_scale
    if kind == "static":
        by_update = read_steps(config.loss_scale_by_step) if config.loss_scale_by_step else {0: first or 1.0}
        return None if set(by_update.values()) == {1.0} else StaticScale(by_update)
    first = first or FIRST_SCALE
    if kind == "histogram":
        return HistogramScale(first, model, world)
    return DynamicScale(first, config.loss_scale_interval)


def refuse_layout(recipe: Recipe, world: World) -> None:
    """Check the layout of ``[parallel]`` and ``[memory]``.

    Raises:
        UserError: the layout does not match the number of ranks, or a custom objective or optimizer may not support it.
    """
    parallel = recipe.parallel
    parallel.sizes(world.size)  # benchmarks run in one process
    precision = recipe.precision
    if world.is_sharded and precision.gradients != precision.weights:
        raise UserError(
            "sharded ranks sum gradients in the dtype of the weights: set precision.gradients to "
            f'"{precision.weights}", or parallel.data_parallel to "replicate"'
        )
    needing: list[tuple[str, object, object]] = []
    if world.is_sharded:
        needing.append(("parallel.data_parallel", parallel.data_parallel, "replicate"))
    if world.pipeline.size > 1:
        needing.append(("parallel.pipeline_parallel", parallel.pipeline_parallel, 1))
    if recipe.memory.execution == "phased":
        needing.append(("memory.execution", "phased", "resident"))
    if needing and type(recipe.objective) not in OBJECTIVES:
        option, value, safe = needing[0]
        raise UserError(
            f"{option} = {value!r} requires that every micro-batch uses all of the model, which "
            f"{type(recipe.objective).__name__} does not guarantee: set it to {safe!r}"
        )
    if world.holders.size > 1 and type(recipe.optimizer) not in UPDATES:
        raise UserError(
            f"{type(recipe.optimizer).__name__} may need whole weights, but [parallel] splits them over ranks: "
            'set data_parallel to "replicate" and tensor_parallel to 1'
        )


def shape_of(recipe: Recipe) -> Shape:
    """Return what the speed of a run's native operators depends on; custom models may lack some."""
    model, default, described = recipe.model, DEFAULT_SHAPE, description_of(recipe.model)
    hidden_size = getattr(model, "hidden_size", default.hidden_size)
    parts = described.block.parts if described else ()
    layers = [part for part in parts if isinstance(part, FeedForward) and part.activation in ACTIVATIONS]
    shape = Shape(
        # not of a micro-batch: the operators must not depend on how a batch is divided
        tokens=recipe.training.global_batch_size * recipe.sequence_length,
        hidden_size=hidden_size,
        feed_forward_size=getattr(model, "effective_feed_forward_size", 4 * hidden_size),
        sequence_length=recipe.sequence_length,
        head_size=getattr(model, "effective_head_size", default.head_size),
        vocab_size=model.vocab_size or default.vocab_size,
    )
    if not layers:
        return shape
    kind, bias = layers[0], layers[0].inputs[0].bias
    return replace(shape, activation=kind.activation, is_gated=kind.is_gated, has_bias=bias)


def needs_files(recipe: Recipe, device: torch.device) -> bool:
    """Return whether phased execution stores the state in files; with a GPU, the default is host memory."""
    is_phased = recipe.memory.execution == "phased"
    return is_phased and (device.type != "cuda" or recipe.memory.scratch is not None)


def refuse_options_of_gpus(recipe: Recipe, device: torch.device) -> None:
    """Raise UserError for an option that requires a GPU, on another device."""
    if device.type == "cuda":
        return
    for option in ("offload_activations", "offload_optimizer"):
        if getattr(recipe.memory, option):
            raise UserError(
                f"memory.{option} offloads tensors from a GPU to host memory, but this run uses "
                f"{device.type}: remove it, or use `device='cuda'`"
            )
    if recipe.parallel.async_tensor_parallel:
        raise UserError(
            "parallel.async_tensor_parallel reads the memory of other GPUs, but this run uses "
            f"{device.type}: remove it, or use `device='cuda'`"
        )
    precision = recipe.precision
    is_native = device.type == "cpu" and precision.kernels != "torch"
    is_bf16 = compute_dtype(precision.compute, device) == torch.bfloat16
    if precision.partials == "half" and not (is_native and is_bf16 and HALVES in instruction_sets()):
        raise UserError(
            'precision.partials = "half" requires a GPU, or bf16 and native operators on a CPU with AVX512-FP16, but '
            f"this run uses {device.type}: remove it, or use `device='cuda'`"
        )


def build_phased(
    model: LanguageModel, update: Update, recipe: Recipe, world: World, scratch: Path | None = None
) -> Phased:
    """Return the phased executor of ``model``, which is on the meta device; its weights are not yet initialized.

    Raises:
        UserError: a custom model has more parts than embedding, blocks and head.
        StorageError: the disk has not enough space, or does not support scratch files.
    """
    refuse_other_parts(model, "memory.execution", "resident")
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(buffer, device=world.device))

    def space() -> Space:
        if not needs_files(recipe, world.device):
            return PinnedSpace(world.device)
        named = Path(recipe.memory.scratch) if recipe.memory.scratch else None
        return FileSpace(ScratchFile(scratch or named), world.device)

    return_large_buffers()
    home = PhasedHome(model, update, recipe, world, space(), space())
    model.computes_on = world.device
    return Phased(home, world.device)


def build_pipeline(model: LanguageModel, recipe: Recipe, world: World) -> Pipeline:
    """Return the pipeline of ``model``, which is on the meta device.

    Raises:
        UserError: a custom model cannot be split into stages, or the schedule requires a newer PyTorch.
    """
    parallel, version = recipe.parallel, torch.__version__
    is_old = tuple(map(int, re.findall(r"\d+", version)[:2])) < _ZERO_BUBBLE_SINCE
    if parallel.pipeline_schedule in ("zero-bubble", "v-shaped") and is_old:
        tested = ".".join(map(str, _ZERO_BUBBLE_SINCE))
        raise UserError(
            f'parallel.pipeline_schedule = "{parallel.pipeline_schedule}" requires PyTorch {tested} or newer, but this '
            f'is {version}: upgrade PyTorch or set it to "1f1b"'
        )
    refuse_other_parts(model, "parallel.pipeline_parallel", 1)
    return Pipeline(model, world, parallel, parallel.stages(recipe.model, recipe.objective))


def refuse_other_parts(model: LanguageModel, option: str, safe: object) -> None:
    """Raise UserError if ``model`` is more than embedding, blocks and head, or shares weights between them.

    Args:
        model: of any family, including custom ones.
        option: the option that requires these parts.
        safe: its value that does not.
    """
    outside = {name.partition(".")[0] for name in model.state_dict()} - {"embedding", "blocks", "head"}
    names, shared = model.named_parameters(), model.named_parameters(remove_duplicate=False)
    if outside or len(list(names)) < len(list(shared)) or type(model).forward is not LanguageModel.forward:
        raise UserError(
            f"{type(model).__name__} cannot be split into parts: it shares weights between layers or "
            f"has more than embedding, blocks and head; set {option} to {safe!r}"
        )
