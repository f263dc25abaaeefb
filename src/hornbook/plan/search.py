"""Search for the fastest layout: data x shard x tensor x pipeline x recomputation (or phased) x micro-batch.

Every layout that the recipe's sizes allow is planned with the largest micro-batch that fits, and ranked by the time
predicted by `hornbook.plan.speed`. Pipelines use ``1f1b`` and balanced stages.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hornbook.config.recipe import Recipe
from hornbook.plan.planner import (
    PHASED,
    RESIDENT,
    Machine,
    Plan,
    differing,
    fits,
    largest_micro_batch,
    make_plan,
    with_options,
    written,
)

_MOST_TENSOR_RANKS = 8
"""Usual number of devices of a machine, which limits tensor parallelism, since it waits for its messages."""
_SMALLER = 4
"""Number of sizes to try below the largest micro-batch, since smaller ones fill a pipeline better."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A layout that fits."""

    options: dict[str, dict[str, Any]]
    """Options that differ from the recipe, by section."""
    plan: Plan

    @property
    def words(self) -> str:
        """The options as recipe keys with values."""
        return written(self.options)


def search_layouts(recipe: Recipe, machine: Machine) -> list[Layout]:
    """Return the layouts that fit, fastest first."""
    found = []
    for options in _layouts(recipe, machine.num_ranks):
        changed = with_options(recipe, **options)
        largest = None if changed.problems() else largest_micro_batch(changed, machine)
        if largest is None:
            continue
        plans = [*_plans(changed, machine, largest)]
        if plans:
            best = min(plans, key=lambda plan: plan.speed.seconds)
            size = {"micro_batch_size": best.recipe.training.micro_batch_size}
            found.append(Layout(options=differing(recipe, options | {"training": size}), plan=best))
    return sorted(found, key=lambda layout: (layout.plan.speed.seconds, layout.plan.peak))


def _plans(recipe: Recipe, machine: Machine, largest: int) -> Iterator[Plan]:
    for divisor in (1, 2, _SMALLER):
        sized = with_options(recipe, training={"micro_batch_size": max(1, largest // divisor)})
        if fits(sized, machine):
            yield make_plan(sized, machine, advises=False)


def _layouts(recipe: Recipe, num_ranks: int) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield the options of each layout."""
    for tensor in _divisors(num_ranks, _MOST_TENSOR_RANKS):
        for pipeline in _divisors(num_ranks // tensor, recipe.model.num_layers):
            data = num_ranks // (tensor * pipeline)
            for kind in ("replicate", "shard") if data > 1 else ("replicate",):
                parallel = {
                    "tensor_parallel": tensor,
                    "sequence_parallel": False,
                    "pipeline_parallel": pipeline,
                    "layers_per_stage": (),
                    "pipeline_schedule": "1f1b",
                    "data_parallel": kind,
                    "shard_size": None,
                    "sum_gradients": "micro_batch",
                }
                for recompute in (None, "attention", "all"):
                    memory = {"recompute": recompute, "recompute_layers": (), "recompute_budget": None}
                    yield {"parallel": parallel, "memory": RESIDENT | memory}
                yield {"parallel": parallel, "memory": PHASED}


def _divisors(number: int, most: int) -> list[int]:
    return [size for size in range(1, min(number, most) + 1) if number % size == 0]
