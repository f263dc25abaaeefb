"""Does the dial choose well? Its choice for a time beside neighbors that train for the same time.

::

    python benchmarks/dial_proof.py corpora/new results --seconds 120

Time is processor time of one thread, so other work on the machine hardly matters: steps of each width and batch are
timed in turns, `hornbook.plan.dial.choose` chooses by the medians, and each neighbor gets as many tokens as fit the
time that the pilot behind the prediction leaves, as in ``train auto``. The grid has three widths and three batches; the
choice is repeated with other seeds. ``grid.json`` in the folder records it, so a second call trains what is missing.
"""

import argparse
import json
import math
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch

from hornbook.config import Recipe, load_recipe
from hornbook.corpora.store import open_store
from hornbook.measure.dial import OTHER, PILOT_SHARE, START_AND_END
from hornbook.measure.pilot import bits_per_nat, pilot_tokens, train_pilot
from hornbook.measure.throughput import hornbook_step
from hornbook.parallel.world import World
from hornbook.plan.dial import BASE, MOST_EPOCHS, Corpus, batch_windows, choose, num_flops, options_of
from hornbook.samples.sources import complete, open_sources
from scaling_runs import Trial, run

CPU = torch.device("cpu")
_WIDTHS, _STEPS, _TURNS = range(1, 7), 4, 5
_SEEDS = 3

Point = tuple[int, int | None]  # width, and windows of a batch unless it is for the dial to choose


def token_seconds(recipes: Mapping[Point, Recipe]) -> dict[Point, float]:
    """Return the processor time of training on a token: the median of turns in which each recipe takes some steps."""
    steps = {key: hornbook_step(recipe, World(device=CPU)) for key, recipe in recipes.items()}
    for step in steps.values():
        step()
    turns: dict[Point, list[float]] = {key: [] for key in recipes}
    for _ in range(_TURNS):
        for key, step in steps.items():
            before = time.process_time()
            tokens = sum(step() for _ in range(_STEPS))
            turns[key].append((time.process_time() - before) / tokens)
    return {key: float(numpy.median(seconds)) for key, seconds in turns.items()}


def plan_grid(corpus: Path, given_seconds: float) -> dict[str, Any]:
    """Choose for a time, and return the choice's prediction and the trials, those of the choice first."""
    seconds, unique = (given_seconds - START_AND_END) / OTHER, open_store(corpus, "train").num_tokens

    def recipe_of(width: int, tokens: int, windows: int | None = None) -> Recipe:
        words = [f"--{key}={value}" for key, value in options_of(width, tokens, windows=windows).items()]
        recipe = load_recipe(BASE, ["--data.train", str(corpus), *words]).recipe
        return complete(recipe, open_sources(recipe))

    timed = token_seconds({(width, None): recipe_of(width, 1 << 20) for width in _WIDTHS})
    best, smallest = choose(seconds, unique, lambda width: timed[width, None], _WIDTHS)[0], recipe_of(1, 1 << 20)
    sources, vocabulary = open_sources(smallest), smallest.model.vocab_size or 1
    cost = best.tokens * num_flops(best.width, vocabulary) / num_flops(1, vocabulary)
    tokens, predicted = pilot_tokens(unique, PILOT_SHARE * cost), None
    if tokens is not None:
        began = time.process_time()
        pilot = train_pilot(lambda tokens: recipe_of(1, tokens), sources, tokens, CPU)
        seconds -= (time.process_time() - began) / OTHER
        best = choose(seconds, unique, lambda width: timed[width, None], range(best.width, best.width + 1))[0]
        fitted = Corpus.of(pilot, unique)
        predicted = (fitted.floor + fitted.scale * best.loss) * (bits_per_nat(sources) or math.nan)
    middle, first = batch_windows(best.tokens), max(1, best.width - 1)
    grid = [(width, windows) for width in range(first, first + 3) for windows in (middle // 2, middle, 2 * middle)]
    grid.sort(key=lambda point: point != (best.width, middle))
    timed |= token_seconds({(width, windows): recipe_of(width, best.tokens, windows) for width, windows in grid})
    trials = [
        {
            "width": width,
            "windows": windows,
            "tokens": min(int(seconds / timed[width, windows]), MOST_EPOCHS * unique),
            "seed": seed,
        }
        for width, windows, seed in [(*grid[0], seed) for seed in range(_SEEDS)] + [(*point, 0) for point in grid[1:]]
    ]
    return {"seconds": given_seconds, "predicted": predicted, "trials": trials}


def main() -> None:
    """Choose, train the grid, and print a row for each run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("corpus", type=Path, help="output folder of hornbook corpus build")
    parser.add_argument("folder", type=Path, help="of the results")
    parser.add_argument("--seconds", type=float, default=120, help="of processor time, as given to the dial")
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time (default: 1)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    record = given.folder / "grid.json"
    if not record.exists():
        record.write_text(json.dumps(plan_grid(given.corpus, given.seconds), indent=1))
    grid = json.loads(record.read_text())
    if grid["seconds"] != given.seconds:
        parser.error(f"{record} is for {grid['seconds']:g} seconds: choose another folder")
    trials = [Trial(given.corpus, **trial) for trial in grid["trials"]]
    chosen, *_ = trials
    told = "nothing predicted" if grid["predicted"] is None else f"predicted {grid['predicted']:.4f}"
    print(f"chosen: width {chosen.width}, {chosen.windows} windows; {told}", flush=True)
    with ProcessPoolExecutor(given.workers) as pool:
        list(pool.map(partial(run, folder=given.folder), trials))
    for trial in trials:
        bits = json.loads((given.folder / f"{trial.name}.json").read_text())["bits_per_byte"]
        print(f"width {trial.width}, {trial.windows} windows, seed {trial.seed}: {trial.tokens:,} tokens, {bits:.4f}")


if __name__ == "__main__":
    main()
