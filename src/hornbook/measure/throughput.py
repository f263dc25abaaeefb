"""How fast the training step of a recipe is on this machine, alone or beside a peer.

Every contender makes whole steps (batches, forward, backward, clipping, update) on random tokens, in turn, so that a
noisy machine is noisy to all of them; the median counts. An encoder's sequences are as long as those of Wikipedia, and
tokens a second are counted without padding, for all alike. Nothing is written.

A run makes its batches ahead in a thread, into page-locked memory for a GPU. Here that thread would work in another
contender's turn, so each makes its batches inside its own step, from pageable memory, the peers too. The price: a run
with a core to spare is faster than is said here, by the time that its batches take.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

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

Step = Callable[[], int]
"""Makes a step and returns how many tokens it trained on, padding apart."""


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """What one step takes."""

    step_seconds: float
    """Median over the measured steps."""
    tokens_per_second: float
    """Median over the measured steps, without padding."""


def measure_steps(contenders: Mapping[str, Step], world: World, *, rounds: int) -> dict[str, Throughput]:
    """Time the contenders' steps in turn, ``rounds`` times each after two that warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(_WARM_UP + rounds):
        for name, step in contenders.items():
            start = time.perf_counter()
            tokens = step()
            synchronize(world.device)
            seconds[name].append(time.perf_counter() - start)
            rates[name].append(tokens / seconds[name][-1])
    return {
        name: Throughput(
            step_seconds=statistics.median(seconds[name][_WARM_UP:]),
            tokens_per_second=statistics.median(rates[name][_WARM_UP:]),
        )
        for name in contenders
    }


def matrix_product(recipe: Recipe, world: World) -> Product:
    """Return the plain product of the feed-forward's shape for a micro-batch, in the dtype of the activations."""
    tokens = recipe.training.micro_batch_size * recipe.sequence_length
    return Product.of(recipe, tokens, compute_dtype(recipe.precision.compute, world.device), world.device)


def compare_with_product(recipe: Recipe, step: Throughput, rate: float) -> dict[str, float]:
    """Return ``tflops`` of a step, ``matmul_tflops`` of a product's ``rate`` in FLOP/s, and their ``tflops_ratio``.

    The recipe's model has ``flops_per_token``; the length of its sequences is the mean of those in the step.
    """
    flops = recipe.flops_per_token(step.tokens_per_second * step.step_seconds / recipe.training.global_batch_size)
    assert flops is not None, "a product is measured only where the step's operations are known"
    tflops, matmul_tflops = flops * step.tokens_per_second / 1e12, rate / 1e12
    return {"tflops": tflops, "matmul_tflops": matmul_tflops, "tflops_ratio": tflops / matmul_tflops}


def synthetic_loader(recipe: Recipe, world: World) -> Loader:
    """Return the batches that the recipe would train on, one step an item, of random tokens.

    Args:
        recipe: its ``model.vocab_size`` must be set.
        world: gives this rank's share of a batch, and the device, which decides how an encoder's sequences are laid
            out, unless the recipe does.

    Raises:
        UserError: the recipe learns labels, which random tokens do not have.
    """
    if isinstance(recipe.objective, LabelledConfig):
        raise UserError(
            f"steps are measured on random tokens, which have no labels to learn {recipe.objective.name!r} from; add "
            "--objective.name mlm, the same but for the head"
        )
    data = replace(recipe.data, train=DataConfig.train, weights=DataConfig.weights, synthetic=True)
    recipe = replace(recipe, data=data)
    samples = build_samples(recipe, open_sources(recipe), on_cpu=world.device.type == "cpu")
    return build_loader(recipe, samples, world, prefetch=0)


def hornbook_step(recipe: Recipe, world: World) -> Step:
    """Return the training step that `hornbook train` makes, but that its batches are made within it.

    Args:
        recipe: its ``model.vocab_size`` must be set.
        world: gives the device and this rank's share.
    """
    state, config = build_training(recipe, 1 << 30, world)
    kernels = in_use()  # another contender may use others
    loader = synthetic_loader(recipe, world)

    def step() -> int:
        with using(kernels):
            return train_step(state, next(loader), config).size.tokens

    return step
