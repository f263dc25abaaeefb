"""Choose the decoder for a time on this machine, by timing a few steps of promising depths.

    timed: 2 -> choose among all depths -> 5 -> timed: 5 -> choose again -> 4 -> timed: 4 -> choose again -> 4

The FLOP/s of depths that were not timed are those of the nearest that was. Once a tenth of the time is used, two steps
of a depth must do, and no further depth is timed. The choice is written to the run's folder, so that the same command
resumes the run instead of choosing again.
"""

import math
import statistics
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from hornbook.config import WarmupStableDecayConfig, load_recipe
from hornbook.config.build import Draft, Resolved, check, fit_ranks, read_draft
from hornbook.config.overrides import override_leaves
from hornbook.config.recipe import Recipe
from hornbook.config.recipe_files import Leaf, Tree, merge
from hornbook.corpora.store import TokenStore
from hornbook.errors import UserError
from hornbook.measure.text_bits import text_bits
from hornbook.measure.throughput import hornbook_step, timed
from hornbook.parallel.world import World
from hornbook.plan.dial import (
    BASE,
    LAW,
    LEAST_STEPS,
    MOST_DEPTH,
    MOST_EPOCHS,
    Choice,
    Corpus,
    Dial,
    batch_windows,
    best_tokens,
    choose,
    interval,
    num_flops,
    num_weights,
    options_of,
    refuse_contradictions,
)
from hornbook.run.planning import plan_here
from hornbook.run.run_folder import RunFolder
from hornbook.samples.sources import Sources, complete, open_sources
from hornbook.storage.files import replace_file
from hornbook.storage.json_files import dump_json, read_json

NAME: Final = "auto"
"""Of the recipe, and of its run."""
_FIRST_DEPTHS: Final = range(1, 3)
_FIRST_SECONDS: Final = {"cpu": 1e-4, "cuda": 1e-5}
"""Per token and depth, before anything is timed."""
_LEAST_TIMED, _TIMED = 2, 4  # steps, of which the first half warms up
_SHARE = 0.1  # of the time, for timing steps
_VOCABULARY = 8192  # of the measured runs
START_AND_END: Final = 8.0  # seconds: opening the run, its last validation, checkpoint and report
OTHER: Final = 1.03  # checkpoints, logs and other processes
_PATIENCE = 4


@dataclass(frozen=True, kw_only=True)
class Dialed:
    """The chosen depth, the depths beside it, and the seconds per token of those that were timed."""

    best: Choice
    others: list[Choice]
    token_seconds: dict[int, float]


def auto_recipe(
    dial: Dial, overrides: Tree, output: Path | None, device: torch.device, *, num_ranks: int = 1, writes: bool
) -> Resolved:
    """Return the recipe for a time or another dial, with the reasons as notes.

    If a run has begun in the folder, its choice is used again, with the length that the run has given itself since.

    Args:
        dial: what the user set.
        overrides: options of the recipe.
        output: folder of the run; None for ``runs/auto``.
        device: one of those that train.
        num_ranks: number of devices, or of processes that share a CPU.
        writes: whether to write the choice to the folder.

    Raises:
        RecipeError: an option is invalid.
        UserError: an option contradicts the choice, the folder has that for another dial, or the time is too short.
        DataError: the data are missing or damaged.
    """
    draft = _draft(dial, overrides)
    folder = RunFolder(path=output or Path("runs") / draft.name)
    if folder.has_begun and folder.choice.exists():
        return _again(draft, dial, folder)
    base = check(draft).recipe
    if dial.name == "time":
        _refuse_time(base, dial)
    sources, length = open_sources(base), base.sequence_length
    unique = sum(store.num_tokens for store in sources.train if isinstance(store, TokenStore))

    def windows_for(tokens: int) -> int:
        return -(-batch_windows(tokens, length) // num_ranks) * num_ranks

    if MOST_EPOCHS * unique < LEAST_STEPS * windows_for(0) * length:
        told = f"too few for {LEAST_STEPS} steps in {MOST_EPOCHS} epochs: build a larger corpus"
        raise UserError(f"{', '.join(base.data.train)} has {unique:,} tokens, {told}")

    def options_for(choice: Choice) -> dict[str, Any]:
        return {**options_of(choice.depth, choice.tokens, windows=windows_for(choice.tokens), length=length)}

    def recipe_of(choice: Choice) -> Recipe:
        return complete(fit_ranks(_with_options(draft, options_for(choice), dial), num_ranks).recipe, sources)

    vocabulary = complete(base, sources).model.vocab_size
    assert vocabulary is not None, "complete sources have a vocabulary"
    found = _turn(dial, unique, vocabulary, recipe_of, device, num_ranks)
    options = options_for(found.best)
    if (steps := options["training.steps"]) < LEAST_STEPS:
        fewest = _fewest_steps(found, dial, options["training.global_batch_size"] * length)
        raise UserError(f"{dial} is not enough for {fewest}: give more")
    options |= _intervals(steps, stops=sources.validation is not None)
    resolved = _with_options(draft, options, dial)
    reasons = [*_reasons(found, dial, unique, sources)]
    if writes:
        limit = {"begun": dial.begun, "seconds": dial.value} if dial.name == "time" else {}
        document = {"name": draft.name, "dial": str(dial), "options": options, "reasons": reasons}
        folder.path.mkdir(parents=True, exist_ok=True)
        replace_file(folder.choice, dump_json(document | limit))
    return replace(resolved, notes=(*reasons, *resolved.notes))


def _fewest_steps(found: Dialed, dial: Dial, tokens: int) -> str:
    """Return what the shortest run trains, for an error, and how long, if steps of ``tokens`` were timed."""
    fewest = f"{LEAST_STEPS} steps of the smallest model here, the fewest that teach it anything"
    if (token_seconds := found.token_seconds.get(found.best.depth)) is None:
        return fewest
    needed = time.time() - dial.begun + LEAST_STEPS * tokens * token_seconds * OTHER + START_AND_END
    return f"{fewest}, which take {needed:.0f} s in all"


def _refuse_time(recipe: Recipe, dial: Dial) -> None:
    """Raise UserError if the time is over before the first step, or if the recipe fixes the end."""
    if dial.value <= START_AND_END:
        raise UserError(f"{dial} is too little: a run takes {START_AND_END:g} s to start and end")
    if not isinstance(recipe.schedule, WarmupStableDecayConfig) or recipe.schedule.decay_end is not None:
        raise UserError(
            "`time` corrects the length of the run, which takes the schedule warmup_stable_decay without an end of its "
            "own: remove `schedule.name` and `schedule.decay_end`"
        )


def prepared_choice(dial: Dial, overrides: Tree, output: Path | None) -> Resolved:
    """Return what `auto_recipe` does for a rank, which must not choose on its own.

    Raises:
        UserError: there is no choice; or see `auto_recipe`.
    """
    draft = _draft(dial, overrides)
    folder = RunFolder(path=output or Path("runs") / draft.name)
    if not folder.choice.exists():
        raise UserError(
            "the recipe auto measures before the ranks start: use `processes` instead of torchrun, or print the "
            "recipe and train that"
        )
    resolved = _again(draft, dial, folder)
    reasons = [] if folder.has_begun else read_json(folder.choice, "choice")["reasons"]
    return replace(resolved, notes=(*reasons, *resolved.notes))


def _draft(dial: Dial, overrides: Tree) -> Draft:
    refuse_contradictions(overrides, dial.name)
    draft = read_draft(BASE, overrides)
    return replace(draft, file=merge(draft.file, {("", "name"): Leaf(value=NAME, source=str(dial))}))


def _again(draft: Draft, dial: Dial, folder: RunFolder) -> Resolved:
    """Return the choice of a folder, with the length that its run, if any, has given itself."""
    saved = read_json(folder.choice, "choice")
    if saved["dial"] != str(dial):
        raise UserError(
            f"the model in {folder.path} was chosen for {saved['dial']}, not {dial}: use the same to resume it, or "
            "choose another `output`"
        )
    options, last = dict(saved["options"]), folder.last_recipe
    if last and isinstance(last.schedule, WarmupStableDecayConfig):
        options |= {"training.steps": last.training.steps, "schedule.lengths": last.schedule.lengths}
    return _with_options(draft, options, dial)


def _with_options(draft: Draft, options: dict[str, Any], dial: Dial) -> Resolved:
    file = merge(draft.file, override_leaves(options, str(dial)))
    return replace(check(replace(draft, file=file)), output=Path("runs") / draft.name)


def _intervals(steps: int, *, stops: bool) -> dict[str, Any]:
    """Return the intervals of a run with ten measurements, and when it stops early."""
    every = max(1, steps // 10)
    patience = {"evaluation.early_stopping_patience": _PATIENCE} if stops else {}
    saving = {"checkpoint.every_steps": max(1, steps // 4), "tracking.sample_every_steps": max(1, steps // 5)}
    return {"evaluation.every_steps": every, **saving, **patience}


def _reasons(found: Dialed, dial: Dial, unique: int, sources: Sources) -> Iterator[str]:
    """Yield the choice and its reasons, one line each."""
    best = found.best
    speed = (
        f", {1 / found.token_seconds[best.depth]:,.0f} tokens/s measured" if best.depth in found.token_seconds else ""
    )
    yield (
        f"{dial}: depth {best.depth}, {num_weights(best.depth):,} weights in blocks, {best.tokens:,} tokens, "
        f"{best.epochs:.2g} epochs{speed}"
    )
    text = text_bits(sources)
    corpus = Corpus.of(text)
    loss = corpus.floor + corpus.scale * best.loss
    low, high = interval(best.depth, best.tokens, unique, text, loss)
    yield f"predicted loss {loss:.3f} bits per byte on held-out text like this, 80 % between {low:.2f} and {high:.2f}"
    for other in found.others:
        yield (
            f"depth {other.depth} would train on {other.tokens:,} tokens: "
            f"{corpus.scale * (other.loss - best.loss):+.3f} bits per byte"
        )
    if best.extrapolates:
        yield f"extrapolated: measured were up to {LAW.largest:,.0f} weights and {LAW.longest:,.0f} tokens"
    if best.epochs > MOST_EPOCHS - 0.01:
        yield f"the corpus is small for {dial}: after {MOST_EPOCHS} epochs more stop helping, so the run ends; add text"
    if sources.validation is None:
        yield "nothing is held out to measure the loss: build the corpus with `hornbook corpus build --validation 0.05`"


def _turn(
    dial: Dial,
    unique: int,
    vocabulary: int,
    recipe_of: Callable[[Choice], Recipe],
    device: torch.device,
    num_ranks: int,
) -> Dialed:
    """Return the choice for a dial; only the time needs measurements."""
    depths, limit = range(1, MOST_DEPTH + 1), dial.value

    def at(depth: int, tokens: float) -> Choice:
        return choose(1.0, unique, lambda _: 1 / tokens, range(depth, depth + 1))[0]

    match dial.name:
        case "time":

            def left() -> float:
                return (dial.begun + limit - time.time() - START_AND_END) / OTHER

            return dial_time(left, unique, recipe_of, device, num_ranks)
        case "flops":
            ranked = choose(limit, unique, lambda depth: num_flops(depth, vocabulary), depths)
            return Dialed(best=ranked[0], others=_beside(ranked, ranked[0].depth), token_seconds={})
        case "tokens":
            limit = min(limit, MOST_EPOCHS * unique)
            best = min(depths, key=lambda depth: abs(best_tokens(depth) - limit))
            return Dialed(best=at(best, limit), others=[], token_seconds={})
        case "params":

            def size(depth: int) -> float:
                return recipe_of(at(depth, 1e6)).num_parameters()

        case _:

            def size(depth: int) -> float:
                return plan_here(recipe_of(at(depth, best_tokens(depth))), num_ranks, device).peak

    largest = bisect_right(depths, limit, key=size)
    if not largest:
        raise UserError(f"{dial} is too little for the smallest model: give more")
    return Dialed(best=at(largest, best_tokens(largest)), others=[], token_seconds={})


def _beside(ranked: list[Choice], depth: int) -> list[Choice]:
    near = [choice for choice in ranked if 0 < abs(choice.depth - depth) <= 2]
    return sorted(near, key=lambda choice: choice.depth)


def dial_time(
    seconds: Callable[[], float],
    unique: float,
    recipe_of: Callable[[Choice], Recipe],
    device: torch.device,
    num_ranks: int = 1,
) -> Dialed:
    """Return the depth with the least predicted loss, timed.

    Args:
        seconds: returns what is left for steps.
        unique: tokens of the training split.
        recipe_of: returns the complete recipe of a choice.
        device: one of those that train; steps are timed on it alone.
        num_ranks: as for `auto_recipe`.

    Raises:
        UserError: not even the smallest model fits in memory.
    """
    token_seconds, depths = dict[int, float](), range(1, MOST_DEPTH + 1)
    given, first = seconds(), _FIRST_SECONDS.get(device.type, _FIRST_SECONDS["cpu"])

    def has_time() -> bool:
        return given - seconds() < _SHARE * given

    guess = choose(max(1.0, given), unique, lambda depth: first * depth, _FIRST_DEPTHS)[0]
    while guess.depth not in token_seconds:
        recipe = recipe_of(guess)
        vocabulary = recipe.model.vocab_size or 1
        if plan_here(recipe, num_ranks, device).fits:
            # each GPU adds its own speed, of which the run then measures the rest; processes share the cores
            of_one = _token_seconds(recipe, device, has_time)
            token_seconds[guess.depth] = of_one / (num_ranks if device.type == "cuda" else 1)
        else:
            depths = range(1, guess.depth)
        if not depths or not token_seconds:
            raise UserError("not even the smallest model fits in memory; end other programs")
        ranked = choose(max(0.0, seconds()), unique, _from_nearest(token_seconds, vocabulary), depths)
        known = [choice for choice in ranked if choice.depth in token_seconds]
        guess = ranked[0] if has_time() or not known else known[0]
    return Dialed(best=guess, others=_beside(ranked, guess.depth), token_seconds=token_seconds)


def trained_in(seconds: float, device: torch.device) -> tuple[Choice, int]:
    """Return the decoder to train in a time on endless text, by timed steps, and its number of parameters.

    Args:
        seconds: of training steps.
        device: as for `dial_time`.

    Raises:
        UserError: not even the smallest model fits in memory.
    """

    def recipe_of(choice: Choice) -> Recipe:
        options: dict[str, Any] = options_of(choice.depth, choice.tokens)
        options["training.global_batch_size"] = options["training.micro_batch_size"]  # of steps as short as possible
        options |= {"data.synthetic": True, "model.vocab_size": _VOCABULARY}
        return load_recipe(BASE, override_leaves(options)).recipe

    best = dial_time(lambda: seconds, math.inf, recipe_of, device).best
    return best, recipe_of(best).num_parameters()


def _from_nearest(timed: dict[int, float], vocabulary: int) -> Callable[[int], float]:
    """Return the seconds per token of any depth, by the FLOP/s of the nearest that was timed."""

    def seconds(depth: int) -> float:
        nearest = min(timed, key=lambda other: abs(other - depth))
        return timed[nearest] * num_flops(depth, vocabulary) / num_flops(nearest, vocabulary)

    return seconds


def _token_seconds(recipe: Recipe, device: torch.device, has_time: Callable[[], bool]) -> float:
    """Return the median seconds per token of a few steps, of fewer once the time for them is over."""
    step, taken = hornbook_step(recipe, World(device=device)), list[float]()
    while len(taken) < (_TIMED if has_time() else _LEAST_TIMED):
        tokens, seconds = timed(step, device)
        taken.append(seconds / tokens)
    return statistics.median(taken[len(taken) // 2 :])
