"""Measure how a training step scales to several ranks: speed, efficiency, traffic, waiting.

::

    each round      rank 0 alone: a step with 1/n of the global batch, while the others wait
                    all n ranks: a step with the whole global batch
    efficiency      tokens/s of n ranks / (n · tokens/s of rank 0 alone)
    more steps      what each rank sends, and how long it waits

The two alternate, so that other load affects both, with the same threads in each process; results are medians. The
single rank holds the whole model. As in `hornbook.measure.throughput`, steps include making batches of random tokens.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hornbook.config import ParallelConfig, Recipe
from hornbook.config.communication import Load, bytes_sent
from hornbook.engine.build_training import build_training
from hornbook.engine.step import train_step
from hornbook.measure.throughput import Throughput, hornbook_step, synthetic_loader, timed
from hornbook.measure.traffic import Traffic, waiting_share
from hornbook.parallel.world import World
from hornbook.samples.batches import Batch

_WARM_UP = 2


@dataclass(frozen=True, kw_only=True)
class RankTraffic:
    """The communication of one rank in a step."""

    sent: dict[str, float]
    """Measured bytes by operation."""
    formula: dict[str, float]
    """Predicted bytes by operation (`hornbook.config.communication`); empty for custom models."""
    waiting: float
    """Share of the time in which the rank waits for communication; median."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The results of `measure_scaling`."""

    together: Throughput
    """Speed of all ranks; a step takes as long as on the slowest."""
    alone: Throughput | None
    """Speed of one process with 1/n of the global batch; None if it was not measured."""
    efficiency: float | None
    """Tokens per second of all ranks divided by n times those of one process."""
    ranks: list[RankTraffic]


def measure_scaling(recipe: Recipe, world: World, *, rounds: int, with_alone: bool = True) -> Scaling:
    """Time steps of all ranks and of one process, alternating, in ``rounds`` rounds after two warm-up rounds.

    All ranks call this together and get the same result.

    Args:
        recipe: its ``model.vocab_size`` must be set.
        world: the ranks.
        rounds: measured steps of each.
        with_alone: whether to time one process as well, which must be able to hold the whole model.
    """
    is_alone = with_alone and world.is_first
    alone = hornbook_step(_share_of(recipe, world.size), World(device=world.device)) if is_alone else None
    state, config = build_training(recipe, 1 << 30, world)
    loader = synthetic_loader(recipe, world)

    def step() -> int:
        return train_step(state, next(loader), config).size.tokens

    seconds, rates = [], []
    for _ in range(_WARM_UP + rounds):
        taken = timed(alone, world.device) if alone else (0.0, 0.0)
        world.barrier()
        tokens, own_seconds = timed(step, world.device)
        slowest = max(row[0] for row in world.gather([own_seconds]))
        seconds.append((slowest, taken[1]))
        rates.append((tokens / slowest, taken[0] / taken[1] if alone else 0.0))
    medians = [statistics.median(values) for values in zip(*seconds[_WARM_UP:], strict=True)]
    medians += [statistics.median(values) for values in zip(*rates[_WARM_UP:], strict=True)]
    step_seconds, alone_seconds, rate, alone_rate = world.gather(medians)[0]
    waiting = statistics.median(waiting_share(step, world.device) for _ in range(rounds))
    micro_batches = next(loader)
    with Traffic() as traffic:
        train_step(state, micro_batches, config)
    formula = _formula(recipe, world, micro_batches, state.model.compute_dtype)
    return Scaling(
        together=Throughput(step_seconds=step_seconds, tokens_per_second=rate),
        alone=Throughput(step_seconds=alone_seconds, tokens_per_second=alone_rate) if with_alone else None,
        efficiency=rate / (world.size * alone_rate) if with_alone else None,
        ranks=_on_all_ranks(world, traffic.sent, formula, waiting),
    )


def _share_of(recipe: Recipe, num_ranks: int) -> Recipe:
    """Return the recipe for one process, with 1/n of the global batch in whole micro-batches, at least one."""
    training = recipe.training
    share = max(1, round(training.global_batch_size / num_ranks / training.micro_batch_size))
    training = replace(training, global_batch_size=share * training.micro_batch_size)
    return replace(recipe, training=training, parallel=ParallelConfig())


def _formula(
    recipe: Recipe, world: World, micro_batches: Sequence[Batch], compute_dtype: torch.dtype
) -> dict[str, float]:
    tokens = [batch["tokens"].numel() for batch in micro_batches]
    scored = [batch.get("predictions", batch["tokens"]).numel() for batch in micro_batches]
    load = Load(
        num_micro_batches=len(tokens),
        tokens=max(tokens) if world.pipeline.size > 1 else statistics.mean(tokens),
        scored=statistics.mean(scored),
        itemsize=compute_dtype.itemsize,
    )
    return bytes_sent(recipe, world.size, world.rank, load)


def _on_all_ranks(world: World, sent: dict[str, float], formula: dict[str, float], waiting: float) -> list[RankTraffic]:
    """Return each rank's numbers; the operations are the same on all ranks, but may send nothing on some."""
    names = sorted({"all_reduce", "all_gather", "reduce_scatter", "send"} | {*sent})
    rows = world.gather(
        [*(sent.get(name, 0.0) for name in names), *(formula.get(name, 0.0) for name in names), waiting]
    )
    found = []
    for row in rows:
        observed, computed = (
            {name: number for name, number in zip(names, part, strict=True) if number}
            for part in (row[: len(names)], row[len(names) : -1])
        )
        found.append(RankTraffic(sent=observed, formula=computed, waiting=row[-1]))
    return found
