"""Choose the width for a time on this machine, by timing a few steps of promising widths.

    timed: 2 -> choose among all widths -> 5 -> timed: 5 -> choose again -> 4 -> timed: 4 -> choose again -> 4

The FLOP/s of widths that were not timed are those of the nearest that was. Once a tenth of the time is used, two steps
of a width must do, and no further width is timed: the choice is then one that was, or a smaller one.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from hornbook.config import load_recipe
from hornbook.config.overrides import override_leaves
from hornbook.config.recipe import Recipe
from hornbook.errors import UserError
from hornbook.measure.throughput import hornbook_step, timed
from hornbook.parallel.world import World
from hornbook.plan.dial import BASE, MOST_WIDTH, Choice, choose, num_flops, options_of
from hornbook.run.planning import plan_here

_FIRST_WIDTHS: Final = range(1, 3)
_FIRST_SECONDS: Final = {"cpu": 1e-4, "cuda": 1e-5}
"""Per token and width, before anything is timed."""
_LEAST_TIMED, _TIMED = 2, 4  # steps, of which the first half warms up
_SHARE = 0.1  # of the time, for timing steps
_VOCABULARY = 8192  # of the measured runs


@dataclass(frozen=True, kw_only=True)
class Dialed:
    """The chosen width, the widths beside it, and the seconds per token of those that were timed."""

    best: Choice
    others: list[Choice]
    token_seconds: dict[int, float]

    def within(self, seconds: float, unique: float, token_seconds: Callable[[int], float]) -> "Dialed":
        """Return the same widths with what they reach in another time."""
        best, *others = (
            choose(max(0.0, seconds), unique, token_seconds, range(each.width, each.width + 1))[0]
            for each in (self.best, *self.others)
        )
        return replace(self, best=best, others=others)


def beside(ranked: list[Choice], width: int) -> list[Choice]:
    """Return the choices of widths near one, by width."""
    near = [choice for choice in ranked if 0 < abs(choice.width - width) <= 2]
    return sorted(near, key=lambda choice: choice.width)


def dial_time(
    seconds: Callable[[], float],
    unique: float,
    recipe_of: Callable[[Choice], Recipe],
    device: torch.device,
    num_ranks: int = 1,
) -> Dialed:
    """Return the width with the least predicted loss, timed if there is time.

    Args:
        seconds: returns what is left for steps.
        unique: tokens of the training split.
        recipe_of: returns the complete recipe of a choice.
        device: one of those that train; steps are timed on it alone.
        num_ranks: as for `auto_recipe`.

    Raises:
        UserError: not even the smallest model fits in memory.
    """
    token_seconds, widths = dict[int, float](), range(1, MOST_WIDTH + 1)
    given, first = seconds(), _FIRST_SECONDS.get(device.type, _FIRST_SECONDS["cpu"])

    def has_time() -> bool:
        return given - seconds() < _SHARE * given

    guess = choose(max(1.0, given), unique, lambda width: first * width, _FIRST_WIDTHS)[0]
    while guess.width not in token_seconds:
        recipe = recipe_of(guess)
        vocabulary = recipe.model.vocab_size or 1
        if plan_here(recipe, num_ranks, device).fits:
            # each GPU adds its own speed, of which the run then measures the rest; processes share the cores
            of_one = _token_seconds(recipe, device, has_time)
            token_seconds[guess.width] = of_one / (num_ranks if device.type == "cuda" else 1)
        else:
            widths = range(1, guess.width)
        if not widths or not token_seconds:
            raise UserError("not even the smallest model fits in memory; end other programs")
        ranked = choose(max(0.0, seconds()), unique, from_nearest(token_seconds, vocabulary), widths)
        guess = ranked[0]
        if not has_time():
            guess = next(choice for choice in ranked if choice.width <= max(token_seconds))
            break
    return Dialed(best=guess, others=beside(ranked, guess.width), token_seconds=token_seconds)


def trained_in(seconds: float, device: torch.device) -> tuple[Choice, int]:
    """Return the decoder to train in a time on endless text, by timed steps, and its number of parameters.

    Args:
        seconds: of training steps.
        device: as for `dial_time`.

    Raises:
        UserError: not even the smallest model fits in memory.
    """

    def recipe_of(choice: Choice) -> Recipe:
        options: dict[str, Any] = options_of(choice.width, choice.tokens)
        options["training.global_batch_size"] = options["training.micro_batch_size"]  # of steps as short as possible
        options |= {"data.synthetic": True, "model.vocab_size": _VOCABULARY}
        return load_recipe(BASE, override_leaves(options)).recipe

    best = dial_time(lambda: seconds, math.inf, recipe_of, device).best
    return best, recipe_of(best).num_parameters()


def from_nearest(timed: dict[int, float], vocabulary: int) -> Callable[[int], float]:
    """Return the seconds per token of any width, by the FLOP/s of the nearest that was timed."""

    def seconds(width: int) -> float:
        nearest = min(timed, key=lambda other: abs(other - width))
        return timed[nearest] * num_flops(width, vocabulary) / num_flops(nearest, vocabulary)

    return seconds


def _token_seconds(recipe: Recipe, device: torch.device, has_time: Callable[[], bool]) -> float:
    """Return the median seconds per token of a few steps, of fewer once the time for them is over."""
    step, taken = hornbook_step(recipe, World(device=device)), list[float]()
    while len(taken) < (_TIMED if has_time() else _LEAST_TIMED):
        tokens, seconds = timed(step, device)
        taken.append(seconds / tokens)
    return statistics.median(taken[len(taken) // 2 :])
