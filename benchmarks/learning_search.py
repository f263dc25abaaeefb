"""Which recipe learns fastest? A search by successive halving, at equal processor time, on a CPU.

::

    python benchmarks/learning_search.py search --corpus py/4096 py/8192 --draws 12 --budget 60 180 600
    python benchmarks/learning_search.py search --corpus books --draws 0 --budget 600 --also optimizer.name=adamw
    python benchmarks/learning_search.py search --corpus books --draws 0 --budget 60 --recipe book-15m

A candidate is a recipe, ``decoder-demo`` unless ``--recipe`` names another, with some options changed, and one
of the corpora, which may have vocabularies of different sizes. The first is the recipe itself, ``--also`` adds
candidates, and ``--draws`` makes more: each changes up to three options of ``SPACE`` at random. All train for as many
steps as the smallest budget pays for, the better third of them again for the next one, and so on. They are compared by
held-out bits per byte, since tokens of different vocabularies are not.

The price of a step is measured once for each shape, in seconds of processor time on one thread, so that other processes
on the machine change neither the number of steps nor the result. Each run is one file ``results/*.json``; a second call
skips the runs that are there.
"""

import argparse
import hashlib
import json
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from commands import hornbook, step_seconds
from hornbook.corpora.store import open_store

SPACE: dict[str, Sequence[object]] = {
    "optimizer.learning_rate": (0.01, 0.02, 0.03, 0.04),
    "optimizer.table_learning_rate": (3e-3, 6e-3, 1e-2, 2e-2),
    "optimizer.head_learning_rate": (3e-3, 6e-3),
    "optimizer.momentum": (0.9, 0.95),
    "optimizer.weight_decay": (0.0, 0.1),
    "optimizer.row_moments": (False, True),
    "training.global_batch_size": (4, 8, 16, 32),
    "data.sequence_length": (128, 256),
    "model.num_layers": (3, 4, 6),
    "model.hidden_size": (192, 256, 320),
    "model.tied": (True, False),
    "model.embedding_norm": (True, False),
    "model.query_key_norm": ("none", "head"),
    "model.logit_cap": (None, 15),
    "schedule.name": ("linear", "cosine", "warmup_stable_decay"),
}
"""The options that draws change, and their values."""
_MOST_CHANGES = 3
_KEPT = 1 / 3
_WARM_UP = 0.05

Options = tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class Candidate:
    """A recipe, a corpus, and options of the recipe with their values."""

    recipe: str
    corpus: Path
    options: Options

    @property
    def words(self) -> list[str]:
        """The options as a command line has them."""
        values = dict(self.options)
        values.setdefault("training.micro_batch_size", values.get("training.global_batch_size", 16))
        return [f"--{key}={str(value).lower()}" for key, value in values.items()]

    def __str__(self) -> str:
        return " ".join([self.recipe, str(self.corpus), *(f"{key}={value}" for key, value in self.options)])


@dataclass(frozen=True)
class Outcome:
    """A candidate's run."""

    candidate: Candidate
    steps: int
    bits_per_byte: float


def candidates(recipe: str, corpora: Sequence[Path], also: Sequence[str], num_draws: int, seed: int) -> list[Candidate]:
    """Return different candidates: the recipe and the given changes on each corpus, then ``num_draws`` drawn ones."""
    changes: list[Options] = [(), *(tuple(_parsed(word) for word in words.split()) for words in also)]
    found = dict.fromkeys(Candidate(recipe, corpus, change) for corpus in corpora for change in changes)
    draw, num_all = random.Random(seed), len(found) + num_draws
    while len(found) < num_all:
        keys = sorted(draw.sample([*SPACE], draw.randint(1, _MOST_CHANGES)))
        options = tuple((key, draw.choice(SPACE[key])) for key in keys)
        found[Candidate(recipe, draw.choice(corpora), options)] = None
    return [*found]


def _parsed(word: str) -> tuple[str, object]:
    key, _, value = word.partition("=")
    return key, value


def run(candidate: Candidate, root: Path, budget: float, seed: int) -> Outcome:
    """Return the outcome of a candidate for a budget in seconds, of a run made now or before."""
    key = hashlib.sha256(f"{candidate} {budget:g} {seed}".encode()).hexdigest()[:16]
    file = root / "results" / f"{key}.json"
    if not file.exists():
        price = step_seconds(candidate.recipe, candidate.corpus, candidate.words)
        steps = max(1, round(budget / price))
        result = {"candidate": str(candidate), "budget": budget, "seed": seed, "step_seconds": price, "steps": steps}
        result["bits_per_byte"] = _train(candidate, root, steps, seed)
        partial_file = file.with_suffix(".partial")
        partial_file.write_text(json.dumps(result))
        partial_file.rename(file)
        print(f"{result['bits_per_byte']:.4f} {steps} steps of {price:.3f} s: {candidate}", file=sys.stderr, flush=True)
    kept = json.loads(file.read_text())
    return Outcome(candidate, kept["steps"], kept["bits_per_byte"])


def _train(candidate: Candidate, root: Path, steps: int, seed: int) -> float:
    length = [
        f"--training.steps={steps}",
        f"--training.seed={seed}",
        f"--schedule.warmup-steps={max(1, round(_WARM_UP * steps))}",
        f"--checkpoint.every-steps={steps}",
        f"--evaluation.every-steps={steps}",
        "--evaluation.max-windows=128",
        "--tracking.sample-every-steps=none",
    ]
    with tempfile.TemporaryDirectory(dir=root) as folder:
        output = ["--output", str(Path(folder) / "run"), "--threads", "1"]
        data = ["--data.train", str(candidate.corpus)]
        found = hornbook("train", candidate.recipe, *data, *length, *candidate.words, *output)
    store = open_store(candidate.corpus, "validation")
    assert store.num_bytes, "hornbook's own stores count the bytes of the text"
    return found["validation_loss"] / math.log(2) * store.num_tokens / store.num_bytes


def halve(found: Sequence[Candidate], root: Path, budgets: Sequence[float], seeds: int, workers: int) -> list[Outcome]:
    """Run all candidates with the first budget and the better third with each next one; return the last, best first.

    With the last budget, each of ``seeds`` is run and bits per byte are means.
    """
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(workers) as pool:
        for number, budget in enumerate(budgets):
            many = range(seeds) if number + 1 == len(budgets) else range(1)
            runs = [[*pool.map(partial(run, root=root, budget=budget, seed=seed), found)] for seed in many]
            means = [sum(outcome.bits_per_byte for outcome in same) / len(same) for same in zip(*runs, strict=True)]
            outcomes = [
                Outcome(outcome.candidate, outcome.steps, mean) for outcome, mean in zip(runs[0], means, strict=True)
            ]
            outcomes.sort(key=lambda outcome: outcome.bits_per_byte)
            found = [outcome.candidate for outcome in outcomes[: max(1, math.ceil(_KEPT * len(outcomes)))]]
    return outcomes


def main() -> None:
    """Search, and print the candidates of the last budget as a markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="of the results")
    parser.add_argument("--corpus", type=Path, nargs="+", required=True, help="output folders of hornbook corpus build")
    parser.add_argument("--recipe", default="decoder-demo", help="that candidates change (default: decoder-demo)")
    parser.add_argument("--budget", type=float, nargs="+", default=[60, 180, 600], help="seconds of processor time")
    parser.add_argument("--draws", type=int, default=12, help="number of drawn candidates (default: 12)")
    parser.add_argument("--also", action="append", default=[], metavar="KEY=VALUE ...", help="another candidate")
    parser.add_argument("--seeds", type=int, default=1, help="runs with the last budget (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    parser.add_argument("--workers", type=int, default=1, help="runs at once, a thread each (default: 1)")
    given = parser.parse_args()
    (given.folder / "results").mkdir(parents=True, exist_ok=True)
    found = candidates(given.recipe, given.corpus, given.also, given.draws, given.seed)
    outcomes = halve(found, given.folder, given.budget, given.seeds, given.workers)
    print("| candidate | steps | bits per byte |", "|---|---|---|", sep="\n")
    for outcome in outcomes:
        print(f"| {outcome.candidate} | {outcome.steps:,} | {outcome.bits_per_byte:.4f} |")


if __name__ == "__main__":
    main()
