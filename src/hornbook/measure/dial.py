"""Choose the decoder for a time on this machine, by timing a few steps of promising depths.

    timed: 2 -> choose among all depths -> 5 -> timed: 5 -> choose again -> 4 -> timed: 4 -> choose again -> 4

The FLOP/s of depths that were not timed are those of the nearest that was. The choice is written to the run's folder, so
that the same command resumes the run instead of choosing again.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from hornbook.config.build import Draft, Resolved, check
from hornbook.config.overrides import override_leaves
from hornbook.config.recipe import Recipe, dotted
from hornbook.config.recipe_files import merge
from hornbook.errors import UserError
from hornbook.measure.throughput import hornbook_step, measure_steps
from hornbook.parallel.world import World
from hornbook.plan.dial import LEAST_STEPS, MOST_DEPTH, Choice, batch_windows, choose, num_weights, options_of
from hornbook.plan.shrink import shrunk
from hornbook.run.planning import plan_here
from hornbook.samples.sources import complete, open_sources
from hornbook.storage.files import replace_file
from hornbook.storage.json_files import dump_json, read_json

NAME: Final = "auto"
"""Of the recipe, and of its run."""
_FILE = "choice.json"
_FIRST_DEPTH, _ROUNDS = 2, 2
_VALIDATION_WINDOWS, _VALIDATION_SHARE = 64, 0.05
_START_AND_END = 8.0  # seconds: opening the run, its last validation, checkpoint and report
_OTHER = 1.03  # checkpoints, logs and other processes
_LENGTHS = ("steps", "epochs", "tokens")


@dataclass(frozen=True, kw_only=True)
class Dialed:
    """The chosen depth, the depths beside it, and the seconds per token of those that were timed."""

    best: Choice
    others: list[Choice]
    token_seconds: dict[int, float]


def auto_recipe(
    draft: Draft, words: str, seconds: float, folder: Path, device: torch.device, *, writes: bool
) -> tuple[Resolved, Dialed | None]:
    """Return the recipe for a time, and how it was chosen; None if the folder has a choice.

    Args:
        draft: of `hornbook.plan.dial.BASE` and the options of the command line.
        words: the time as the user wrote it.
        seconds: the time, from now to the end of the training.
        folder: of the run.
        device: one of those that train.
        writes: whether to write the choice to the folder.

    Raises:
        RecipeError: an option is invalid.
        UserError: an option contradicts the choice, the folder has that for another time, or the time is too short.
        DataError: the data are missing or damaged.
    """
    begun = time.monotonic()
    draft = _named(draft)
    if (folder / _FILE).exists():
        saved = read_json(folder / _FILE, "choice")
        if saved["time"] != words:
            raise UserError(
                f"the model in {folder} was chosen for `time` {saved['time']}, not {words}: use the same time to "
                "resume it, or choose another `output`"
            )
        return with_options(draft, saved["options"], words), None
    sources = open_sources(check(draft).recipe)
    unique = sum(getattr(store, "num_tokens", 0) for store in sources.train)

    def recipe_of(choice: Choice) -> Recipe:
        return complete(with_options(draft, _options(choice, check(draft).recipe.sequence_length), words).recipe, sources)

    found = dial(lambda: (seconds - (time.monotonic() - begun) - _START_AND_END) / _OTHER, unique, recipe_of, device)
    options = _options(found.best, check(draft).recipe.sequence_length)
    if options["training.steps"] < LEAST_STEPS:
        raise UserError(
            f"`time` {words} is enough for {max(0, options['training.steps'])} steps of the smallest model here, "
            f"which needs at least {LEAST_STEPS}: give more time"
        )
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
        document = {"time": words, "options": options, "token_seconds": found.token_seconds}
        replace_file(folder / _FILE, dump_json(document))
    return with_options(draft, options, words), found


def dial(
    seconds: Callable[[], float], unique: int, recipe_of: Callable[[Choice], Recipe], device: torch.device
) -> Dialed:
    """Return the depth with the least predicted loss, timed.

    Args:
        seconds: returns what is left for steps.
        unique: tokens of the training split.
        recipe_of: returns the complete recipe of a choice.
        device: one of those that train.

    Raises:
        UserError: not even the smallest model fits in memory.
    """
    timed, depths = dict[int, float](), range(1, MOST_DEPTH + 1)
    guess = choose(max(1.0, seconds()), unique, lambda depth: 1e-5 * depth, range(_FIRST_DEPTH, _FIRST_DEPTH + 1))[0]
    while guess.depth not in timed:
        recipe = recipe_of(guess)
        if plan_here(recipe, 1, device).fits:
            timed[guess.depth] = _token_seconds(recipe, device)
        else:
            depths = range(1, guess.depth)
        if not depths:
            raise UserError("not even the smallest model fits in memory; end other programs")
        ranked = choose(max(0.0, seconds()), unique, _from_nearest(timed, recipe_of), depths)
        guess = ranked[0]
    near = [choice for choice in ranked if 0 < abs(choice.depth - guess.depth) <= 2]
    return Dialed(best=guess, others=sorted(near, key=lambda choice: choice.depth), token_seconds=timed)


def _token_seconds(recipe: Recipe, device: torch.device) -> float:
    world = World(device=device)
    return 1 / measure_steps({NAME: hornbook_step(recipe, world)}, world, rounds=_ROUNDS)[NAME].tokens_per_second
