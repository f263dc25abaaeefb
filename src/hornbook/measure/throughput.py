"""Time the training step of a recipe, alone or compared with a peer.

Contenders run whole steps (batches, forward, backward, clipping, update) on random tokens, alternating, so that other
load affects all of them; results are medians. An encoder's sequences have the lengths of Wikipedia's, and tokens are
counted without padding for all contenders. No files are written.

A run prepares batches in a background thread, in pinned memory for a GPU. Here, the thread would run during another
contender's step, so all contenders make their batches within their steps, in pageable memory. So a run with an idle
core is faster than the benchmark, by the time for making batches.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from hornbook.config import DataConfig, LabelledConfig, Recipe
from hornbook.engine.build_training import build_loader, build_samples, build_training
from hornbook.engine.step import train_step
from hornbook.errors import UserError
from hornbook.ops.native.kernels import in_use, using
from hornbook.parallel.device import compute_dtype, synchronize
from hornbook.parallel.world import World
from hornbook.run.utilization import Product
from hornbook.samples.batches import Loader
from hornbook.samples.sources import open_sources

_WARM_UP = 2

T = TypeVar("T")

Step = Callable[[], int]
"""Runs a step and returns its number of tokens, without padding."""


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """The speed of a step."""

    step_seconds: float
    """Median over the measured steps."""
    tokens_per_second: float
    """Median over the measured steps, without padding."""


def timed(call: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """Return a call's result and its seconds, with the work that it queues on the device."""
    start = time.perf_counter()
    result = call()
    synchronize(device)
    return result, time.perf_counter() - start


def measure_steps(contenders: Mapping[str, Step], world: World, *, rounds: int) -> dict[str, Throughput]:
    """Time the contenders' steps, alternating, in ``rounds`` rounds after two warm-up rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(_WARM_UP + rounds):
        for name, step in contenders.items():
            tokens, taken = timed(step, world.device)
            seconds[name].append(taken)
            rates[name].append(tokens / taken)
    return {
        name: Throughput(
            step_seconds=statistics.median(seconds[name][_WARM_UP:]),
            tokens_per_second=statistics.median(rates[name][_WARM_UP:]),
        )
        for name in contenders
    }


def matrix_product(recipe: Recipe, world: World) -> Product:
    """Return the matrix product of the feed-forward's shape for a micro-batch, in the dtype of the activations."""
    tokens = recipe.training.micro_batch_size * recipe.sequence_length
    return Product.of(recipe, tokens, compute_dtype(recipe.precision.compute, world.device), world.device)


def compare_with_product(recipe: Recipe, step: Throughput, rate: float) -> dict[str, float]:
    """Return ``tflops`` of a step, ``matmul_tflops`` of a product's ``rate`` in FLOP/s, and their ``tflops_ratio``.

    The recipe's model must have ``flops_per_token``; the sequence length is the mean of those in the step.
    """
    flops = recipe.flops_per_token(step.tokens_per_second * step.step_seconds / recipe.training.global_batch_size)
    assert flops is not None, "a product is measured only if the step's FLOPs are known"
    tflops, matmul_tflops = flops * step.tokens_per_second / 1e12, rate / 1e12
    return {"tflops": tflops, "matmul_tflops": matmul_tflops, "tflops_ratio": tflops / matmul_tflops}


def synthetic_loader(recipe: Recipe, world: World) -> Loader:
    """Return a loader of the recipe's batches, one step per item, with random tokens.

    Args:
        recipe: its ``model.vocab_size`` must be set.
        world: determines this rank's share of a batch and, by the device, the default layout of an encoder's batches.

    Raises:
        UserError: the recipe trains on labels, which random tokens do not have.
    """
    if isinstance(recipe.objective, LabelledConfig):
        raise UserError(
            f"steps are measured on random tokens, which have no labels for {recipe.objective.name!r}; add "
            "`objective.name='mlm'`, which differs only in the head"
        )
    data = replace(recipe.data, train=DataConfig.train, weights=DataConfig.weights, synthetic=True)
    recipe = replace(recipe, data=data)
    samples = build_samples(recipe, open_sources(recipe), on_cpu=world.device.type == "cpu")
    return build_loader(recipe, samples, world, prefetch=0)


def hornbook_step(recipe: Recipe, world: World) -> Step:
    """Return the training step of `hornbook train`, with the batches made within the step.

    Args:
        recipe: its ``model.vocab_size`` must be set.
        world: has the device and this rank's share.
    """
    state, config = build_training(recipe, 1 << 30, world)
    kernels = in_use()  # other contenders may use other kernels
    loader = synthetic_loader(recipe, world)

    def step() -> int:
        with using(kernels):
            return train_step(state, next(loader), config).size.tokens

    return step
