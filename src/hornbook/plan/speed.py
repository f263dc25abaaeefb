"""Predict the duration of a step by a model of a few terms, each of which is reported.

::

    products        FLOPs of the rank / (peak · efficiency)          including recomputation
    bubble          products · (stages - 1) / micro-batches of a round
    communication   bytes / link; tensor parallelism and stages wait, sums of gradients overlap with the backward pass
    update          bytes of weights, gradients and moments / bandwidth of the memory
    offload         bytes / link to the host; for phased execution, time not hidden by products and update

The efficiency is the share of the peak rate that a device reaches in a step and accounts for everything else. By
default, it is that of published runs (`hornbook.plan.devices.Efficiency`); `hornbook bench step` measures.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hornbook.config.communication import Load, bytes_sent
from hornbook.config.description import description_of
from hornbook.config.parallel import rounds_of
from hornbook.config.recipe import Recipe
from hornbook.plan.attention import Tokens
from hornbook.plan.devices import LAUNCH, Device
from hornbook.plan.layers import Compute
from hornbook.plan.memory import Memory
from hornbook.plan.phased import Moved

_BACKWARD: Final = 2 / 3
"""Share of a step with which sums of gradients can overlap."""
_PASSES_OF_UPDATE: Final = 2.5
"""Number of passes over the state in memory of an update, including norm and clipping."""
_EXPOSED: Final = ("send",)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The terms of the duration of a step, in seconds."""

    flops: float
    """FLOPs of the model over all ranks, without recomputation."""
    hardware_flops: float
    """The same with recomputation."""
    bytes_sent: Mapping[str, float]
    """Bytes by operation of the rank that sends most."""
    products: float
    bubble: float
    communication: float
    update: float
    offload: float
    tokens: int
    """Tokens of the global batch."""
    launches: float
    """Seconds in which a host launches the products of a GPU's step; not a term, since all its kernels are several
    times as many, and only a step without values counts them (`hornbook plan --kernels`)."""

    @property
    def seconds(self) -> float:
        """Duration of the step."""
        return self.products + self.bubble + self.communication + self.update + self.offload

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second over all ranks."""
        return self.tokens / self.seconds

    def mfu(self, peak: float) -> float:
        """Return the model FLOPs utilization, given the ``peak`` rate of all ranks."""
        return self.flops / self.seconds / peak


def speed_of(
    recipe: Recipe,
    num_ranks: int,
    device: Device,
    compute: Compute,
    tokens: Tokens,
    memories: Mapping[int, Memory],
    efficiency: float,
) -> Speed:
    """Return the speed of a step.

    Args:
        recipe: complete.
        num_ranks: of the run, each with a device.
        device: of each rank.
        compute: determines the dtype.
        tokens: of a micro-batch.
        memories: of some ranks, by number, the slowest of which counts.
        efficiency: share of the peak rate that products reach.
    """
    training, sizes = recipe.training, recipe.parallel.sizes(num_ranks)
    num_tokens = training.global_batch_size * recipe.sequence_length
    flops = (recipe.flops_per_token(recipe.sequence_length) or 0.0) * num_tokens
    hardware = flops * (1 + _recomputed(recipe) / 3)
    peak = device.flops[compute.dtype] * efficiency
    products = hardware / num_ranks / peak
    data = sizes.replicate * sizes.shard
    num_micro_batches = training.global_batch_size // (data * training.micro_batch_size)
    load = Load(
        num_micro_batches=num_micro_batches,
        tokens=tokens.num,
        scored=tokens.num_scored,
        itemsize=compute.itemsize,
        gathered=compute.gathered if recipe.memory.execution == "resident" else 4,
    )
    sent = max((bytes_sent(recipe, num_ranks, rank, load) for rank in memories), key=lambda each: sum(each.values()))
    worst = max(memories.values(), key=lambda memory: memory.weights + memory.moments)
    state = worst.weights + worst.gradients + worst.moments
    if worst.transfer is not None:
        state = sum(worst.transfer.update) / 2
    update = _PASSES_OF_UPDATE * state / device.bandwidth
    return Speed(
        flops=flops,
        hardware_flops=hardware,
        bytes_sent=sent,
        products=products,
        bubble=products * _bubble(recipe, num_ranks, num_micro_batches),
        communication=_exposed(recipe, num_ranks, sent, device, products),
        update=update,
        offload=_offload(recipe, worst, device, products, update),
        tokens=num_tokens,
        launches=LAUNCH * _num_products(recipe) * num_micro_batches / sizes.pipeline if device.kind == "cuda" else 0.0,
    )


def _num_products(recipe: Recipe) -> int:
    """Return the products of linear layers for a micro-batch: one forward, two backward."""
    described = description_of(recipe.model)
    return 3 * sum(1 for _ in described.linears()) if described else 0


def _offload(recipe: Recipe, memory: Memory, device: Device, products: float, update: float) -> float:
    """Return the seconds that a step waits for transfers; those of phased execution overlap with its computation."""
    if memory.transfer is None:
        return memory.offloaded / device.host_link
    has_files = device.kind == "cpu" or recipe.memory.scratch is not None

    def waits(moved: Moved, work: float) -> float:
        """Return how much longer transfers take than the computation; links transfer in both directions at once."""
        seconds = sum(moved) / device.disk if has_files else max(moved) / device.host_link
        return max(0.0, seconds - work)

    return waits(memory.transfer.passes, products) + waits(memory.transfer.update, update)


def _recomputed(recipe: Recipe) -> float:
    """Return the share of a forward pass that is recomputed."""
    memory, model = recipe.memory, recipe.model
    if memory.execution == "phased":
        return 1.0
    if memory.recompute is None:
        return 0.0
    share = len(memory.recompute_layers) / model.num_layers if memory.recompute_layers else 1.0
    if memory.recompute == "all":
        return share
    length, flops = recipe.sequence_length, recipe.flops_per_token(recipe.sequence_length) or 1.0
    described = description_of(model)
    assert described is not None, "only described models are planned"
    return share * described.attention_flops(length) / flops


def _bubble(recipe: Recipe, num_ranks: int, num_micro_batches: int) -> float:
    """Return the time for which a pipeline rank waits, relative to the time for which it computes."""
    stages, schedule = recipe.parallel.sizes(num_ranks).pipeline, recipe.parallel.pipeline_schedule
    if stages == 1:
        return 0.0
    rounds = rounds_of(num_micro_batches, stages, schedule)
    idle = len(rounds) * (stages - 1) / num_micro_batches
    if schedule == "interleaved":
        return idle * stages / recipe.parallel.num_stages
    return idle / 3 if schedule in ("zero-bubble", "v-shaped") else idle


def _exposed(recipe: Recipe, num_ranks: int, sent: Mapping[str, float], device: Device, products: float) -> float:
    """Return the seconds of communication that does not overlap with computation."""
    waits = sum(size for operation, size in sent.items() if operation in _EXPOSED) / device.link
    others = sum(size for operation, size in sent.items() if operation not in _EXPOSED) / device.link
    if recipe.parallel.sizes(num_ranks).tensor > 1:
        return waits + others
    return waits + max(0.0, others - _BACKWARD * products)
