"""How fast the training step of a recipe is on this machine, alone or beside a peer.

Every contender makes whole steps (forward, backward, clipping, update) on random tokens, in turn, so that a noisy
machine is noisy to all of them; the median counts. Nothing is written.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hornbook.config import Recipe
from hornbook.data.examples import Windows
from hornbook.data.loader import Loader
from hornbook.data.synthetic import SyntheticTokens
from hornbook.engine.build import build_training
from hornbook.engine.device import synchronize
from hornbook.engine.step import train_step
from hornbook.parallel.world import World

_WARM_UP = 2

Step = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """What one step takes."""

    step_seconds: float
    """Median over the measured steps."""
    tokens_per_second: float


def measure_steps(
    contenders: Mapping[str, Step], recipe: Recipe, world: World, *, rounds: int
) -> dict[str, Throughput]:
    """Time the contenders' steps in turn, ``rounds`` times each after two that warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(_WARM_UP + rounds):
        for name, step in contenders.items():
            start = time.perf_counter()
            step()
            synchronize(world.device)
            seconds[name].append(time.perf_counter() - start)
    tokens = recipe.training.global_batch_size * recipe.sequence_length
    medians = {name: statistics.median(times[_WARM_UP:]) for name, times in seconds.items()}
    return {name: Throughput(step_seconds=time_, tokens_per_second=tokens / time_) for name, time_ in medians.items()}


def hornbook_step(recipe: Recipe, world: World) -> Step:
    """Return the training step that `hornbook train` makes, the loader's work included.

    Args:
        recipe: its ``model.vocab_size`` must be set.
        world: gives the device; one process.
    """
    assert recipe.model.vocab_size is not None, "the caller fills in the vocabulary"
    source = SyntheticTokens(vocab_size=recipe.model.vocab_size, seed=0, document_length=4 * recipe.sequence_length)
    state, trainer = build_training(recipe, 1 << 30, world)
    loader = Loader(
        Windows(source, recipe.sequence_length, seed=0),
        global_batch_size=recipe.training.global_batch_size,
        micro_batch_size=recipe.training.micro_batch_size,
        rank=0,
        world_size=1,
        start_sample=0,
        seed=0,
        document_mask=recipe.data.document_mask,
        prefetch=0,
    )

    def step() -> None:
        batches = [{name: tensor.to(world.device) for name, tensor in batch.items()} for batch in next(loader)]
        train_step(state, batches, trainer)

    return step
