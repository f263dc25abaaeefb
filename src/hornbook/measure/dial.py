"""Choose the decoder for a time or another dial on this machine, and predict its loss.

    time                 -> width, by timed steps (`hornbook.measure.timed_dial`)  }
    params, tokens, ...  -> width, by the law                                      }  -> recipe
    corpus               -> pilot, by short trainings (`hornbook.measure.pilot`)      -> loss

The choice is written to the run's folder, so that the same command resumes the run instead of choosing again.
"""

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from hornbook.config import WarmupStableDecayConfig
from hornbook.config.build import Draft, Resolved, check, fit_ranks, read_draft
from hornbook.config.overrides import override_leaves
from hornbook.config.recipe import Recipe
from hornbook.config.recipe_files import Leaf, Tree, merge
from hornbook.corpora.store import TokenStore
from hornbook.errors import UserError
from hornbook.measure.pilot import bits_per_nat, pilot_tokens, train_pilot
from hornbook.measure.timed_dial import Dialed, beside, dial_time, from_nearest
from hornbook.plan.dial import (
    BASE,
    LAW,
    LEAST_STEPS,
    MOST_EPOCHS,
    MOST_WIDTH,
    Choice,
    Corpus,
    Dial,
    Pilot,
    batch_windows,
    best_tokens,
    choose,
    interval,
    num_flops,
    num_weights,
    options_of,
    refuse_contradictions,
    shape_of,
)
from hornbook.run.planning import plan_here
from hornbook.run.reached import SHARE
from hornbook.run.run_folder import RunFolder
from hornbook.samples.sources import Sources, complete, open_sources
from hornbook.storage.files import make_directory, refuse_file, replace_file
from hornbook.storage.json_files import dump_json
from hornbook.storage.system import format_bytes

NAME: Final = "auto"
"""Of the recipe, and of its run."""
PILOT_SHARE: Final = 0.1  # of the run's FLOPs, for the prediction
START_AND_END: Final = 8.0  # seconds: opening the run, its last validation, checkpoint and report
OTHER: Final = 1.03 + SHARE  # checkpoints, logs, other processes, and the last measurement
_PATIENCE = 4


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
    if writes:
        refuse_file(folder.path, writes=True)
    base = check(draft).recipe
    sources, length = open_sources(base), base.sequence_length
    unique = sum(store.num_tokens for store in sources.train if isinstance(store, TokenStore))

    def windows_for(tokens: int) -> int:
        return -(-batch_windows(tokens, length) // num_ranks) * num_ranks

    _refuse_too_little(base, dial, unique, windows_for(0) * length)

    def options_for(choice: Choice) -> dict[str, Any]:
        return {**options_of(choice.width, choice.tokens, windows=windows_for(choice.tokens), length=length)}

    def recipe_of(choice: Choice) -> Recipe:
        return complete(fit_ranks(_with_options(draft, options_for(choice), dial), num_ranks).recipe, sources)

    vocabulary = complete(base, sources).model.vocab_size
    assert vocabulary is not None, "complete sources have a vocabulary"
    found = _turn(dial, unique, vocabulary, recipe_of, device, num_ranks)
    _refuse_few_steps(found, options_for(found.best), dial, length, vocabulary)
    cost = found.best.tokens * num_flops(found.best.width, vocabulary) / num_flops(1, vocabulary)
    most = PILOT_SHARE * cost / (num_ranks if device.type == "cuda" else 1)  # one GPU trains the pilot
    pilot = _pilot(unique, most, recipe_of, sources, device)
    if dial.name == "time":
        found = found.within(_left(dial), unique, from_nearest(found.token_seconds, vocabulary))
    options = options_for(found.best)
    options |= _intervals(options["training.steps"], stops=sources.validation is not None)
    resolved = _with_options(draft, options, dial)
    predicted = {} if pilot is None else _predicted(found.best, unique, pilot, bits_per_nat(sources) or 1.0)
    reasons = [*_reasons(found, dial, unique, sources, predicted)]
    if writes:
        document = {"name": draft.name, "dial": str(dial), "options": options, "reasons": reasons}
        _write(folder, dial, document | {"predicted": predicted | {"bits_per_nat": bits_per_nat(sources)}})
    return replace(resolved, notes=(*reasons, *resolved.notes))


def _write(folder: RunFolder, dial: Dial, document: Mapping[str, Any]) -> None:
    """Write the choice to the folder of its run, for a time with when it is over."""
    limit = {"begun": dial.begun, "seconds": dial.value} if dial.name == "time" else {}
    make_directory(folder.path)
    replace_file(folder.choice, dump_json({**document, **limit}))


def _refuse_too_little(recipe: Recipe, dial: Dial, unique: int, least_batch: int) -> None:
    """Raise UserError if the time is over before the first step, the text too short, or the end fixed by the recipe."""
    if dial.name == "time" and dial.value <= START_AND_END:
        raise UserError(f"{dial} is too little: a run takes {START_AND_END:g} s to start and end")
    if MOST_EPOCHS * unique < LEAST_STEPS * least_batch:
        least = -(-LEAST_STEPS * least_batch // MOST_EPOCHS)
        told = f"too few for {LEAST_STEPS} steps in {MOST_EPOCHS} epochs: build a corpus of at least {least:,}"
        raise UserError(f"{', '.join(recipe.data.train)} has {unique:,} tokens, {told}")
    if dial.name != "time":
        return
    if not isinstance(recipe.schedule, WarmupStableDecayConfig) or recipe.schedule.decay_end is not None:
        raise UserError(
            "`time` corrects the length of the run, which takes the schedule warmup_stable_decay without an end of its "
            "own: remove `schedule.name` and `schedule.decay_end`"
        )


def _pilot(
    unique: int, most: float, recipe_of: Callable[[Choice], Recipe], sources: Sources, device: torch.device
) -> Pilot | None:
    """Train the longest pilot that `pilot_tokens` finds, if any."""
    tokens = pilot_tokens(unique, most)
    if sources.validation is None or tokens is None:
        return None
    return train_pilot(lambda tokens: recipe_of(_at(1, tokens, unique)), sources, tokens, device)


def _refuse_few_steps(found: Dialed, options: Mapping[str, Any], dial: Dial, length: int, vocabulary: int) -> None:
    """Raise UserError if the run would have too few steps, and say how much enough of them take."""
    if options["training.steps"] >= LEAST_STEPS:
        return
    fewest = f"{LEAST_STEPS} steps of the smallest model here, the fewest that teach it anything"
    tokens, width = LEAST_STEPS * options["training.global_batch_size"] * length, found.best.width
    if dial.name == "time":
        of_token = from_nearest(found.token_seconds, vocabulary)(width)
        seconds = tokens * of_token * OTHER + time.time() - dial.begun + START_AND_END
        fewest += f", which take {seconds:.0f} s in all"
    elif dial.name == "flops":
        fewest += f", which take {1.005 * tokens * num_flops(width, vocabulary):.3g} FLOPs"  # rounded up
    else:
        fewest += f", which take {tokens:,} tokens"
    raise UserError(f"{dial} is not enough for {fewest}: give more")


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
    reasons = [] if folder.has_begun else folder.read_choice()["reasons"]
    return replace(resolved, notes=(*reasons, *resolved.notes))


def _draft(dial: Dial, overrides: Tree) -> Draft:
    refuse_contradictions(overrides, dial.name)
    draft = read_draft(BASE, overrides)
    return replace(draft, file=merge(draft.file, {("", "name"): Leaf(value=NAME, source=str(dial))}))


def _again(draft: Draft, dial: Dial, folder: RunFolder) -> Resolved:
    """Return the choice of a folder, with the length that its run, if any, has given itself."""
    saved = folder.read_choice()
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


def _predicted(best: Choice, unique: int, pilot: Pilot, unit: float) -> dict[str, float]:
    """Return the predicted ``loss``, its bounds ``low`` and ``high``, and the ``scale`` of differences of the law.

    They are in nats per token, times ``unit``.
    """
    corpus = Corpus.of(pilot, unique)
    loss = corpus.floor + corpus.scale * best.loss
    low, high = interval(best.width, best.tokens, unique, pilot, loss)
    found = {"loss": loss, "low": low, "high": high, "scale": corpus.scale}
    return {name: unit * value for name, value in found.items()}


def _reasons(found: Dialed, dial: Dial, unique: int, sources: Sources, predicted: Mapping[str, float]) -> Iterator[str]:
    """Yield the choice and its reasons, one line each."""
    best = found.best
    speed = (
        f", {1 / found.token_seconds[best.width]:,.0f} tokens/s measured" if best.width in found.token_seconds else ""
    )
    yield (
        f"{dial}: {shape_of(best.width)}, {num_weights(best.width):,} weights in blocks, {best.tokens:,} tokens, "
        f"{best.epochs:.2g} epochs{speed}"
    )
    unit = "bits per byte" if bits_per_nat(sources) else "nats per token"
    if predicted:
        told = f"80 % between {predicted['low']:.2f} and {predicted['high']:.2f}"
        yield f"predicted loss {predicted['loss']:.3f} {unit} on held-out text like this, {told}"
    elif sources.validation is not None:
        short = "text" if pilot_tokens(unique, math.inf) is None else "run"
        yield f"no loss is predicted: the {short} is too short to train a small model first"
    for other in found.others:
        told = f"{other.loss / best.loss - 1:+.1%} of the law's loss"
        if predicted:
            told = f"{predicted['scale'] * (other.loss - best.loss):+.3f} {unit}"
        yield f"{shape_of(other.width)} would train on {other.tokens:,} tokens: {told}"
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
    widths, limit = range(1, MOST_WIDTH + 1), dial.value
    match dial.name:
        case "time":
            return dial_time(lambda: _left(dial), unique, recipe_of, device, num_ranks)
        case "flops":
            ranked = choose(limit, unique, lambda width: num_flops(width, vocabulary), widths)
            return Dialed(best=ranked[0], others=beside(ranked, ranked[0].width), token_seconds={})
        case "tokens":
            limit = min(limit, MOST_EPOCHS * unique)
            best = min(widths, key=lambda width: abs(math.log(best_tokens(width, vocabulary) / limit)))
            return Dialed(best=_at(best, limit, unique), others=[], token_seconds={})
        case "params":

            def size(width: int) -> float:
                return recipe_of(_at(width, 1e6, unique)).num_parameters()

        case _:

            def size(width: int) -> float:
                return plan_here(recipe_of(_at(width, best_tokens(width, vocabulary), unique)), num_ranks, device).peak

    largest = bisect_right(widths, limit, key=size)
    if not largest:
        needs = f"has {size(1):,.0f} parameters" if dial.name == "params" else f"takes {format_bytes(size(1))}"
        raise UserError(f"{dial} is too little for the smallest model, which {needs}: give more")
    return Dialed(best=_at(largest, best_tokens(largest, vocabulary), unique), others=[], token_seconds={})


def _left(dial: Dial) -> float:
    """Return the seconds that remain for steps of a time."""
    return (dial.begun + dial.value - time.time() - START_AND_END) / OTHER


def _at(width: int, tokens: float, unique: float) -> Choice:
    return choose(1.0, unique, lambda _: 1 / tokens, range(width, width + 1))[0]
