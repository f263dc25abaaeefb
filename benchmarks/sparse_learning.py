"""Does a block-sparse model learn better than a dense one? One experiment, on a CPU.

A GPT whose linear maps keep 10 % of their blocks is compared with the dense model of the same shape, and with the best
of some narrower dense models, at equal training FLOPs and at equal wall-clock time::

    python benchmarks/sparse_learning.py sparse-learning --workers 2           # two quiet cores, an hour and a half
    python benchmarks/sparse_learning.py sparse-patterns --patterns            # a quiet core, half an hour
    python benchmarks/sparse_learning.py /tmp/shrunk --shrink                  # minutes, a test of the script alone

With ``--patterns``, smaller models with blocks of 4 show how much of a pattern should change at a time, and how often:
RigL with several prune ratios and intervals is compared with the static pattern, at equal FLOPs.

For each model and budget the learning rate is tuned with the first seed: four values, and further ones as long as the
best is at an end of those tried. (That of blocks is higher by ``sparsity.learning_rate_scale``.)
The best one is run with all seeds. Models of one seed see the same windows in the same order, so
differences are taken seed by seed. Time is what a thread has of a core, so that other processes on the machine do not
change it.

Each run is one file ``results/*.json``; a second call skips the runs that are there, so the experiment resumes where it
was stopped. The corpus is that of ``hornbook demo``, the texts of Python's standard library. The table is printed as
markdown: mean validation loss, nats a token, with standard errors over the seeds.
"""

import argparse
import json
import resource
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from commands import hornbook
from hornbook.cli.demo_command import EXCLUDED, VALIDATION
from hornbook.config import load_recipe

LEARNING_RATES = (0.75e-3, 1.5e-3, 3e-3, 6e-3)
MOST_LEARNING_RATES = 6
SEEDS = (0, 1, 2)
WIDTHS = (0.25, 0.3125, 0.4375)
"""Of the narrower dense models, over that of the sparse ones."""
BLOCK_SIZES = (4, 8, 16)
UPDATES = ("static", "random", "rigl", "rigl_sample")
CHANGES = ((0.1, 100),)
"""Prune ratios, each with the number of steps between updates."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large the experiment is."""

    hidden_size: int = 256
    num_layers: int = 3
    sequence_length: int = 128
    batch_size: int = 8
    vocab_size: int = 512
    petaflops: float = 2.5e-3
    """Training FLOPs of a run, in 10¹⁵."""
    seconds: float = 40.0
    """Wall-clock time of a run at the other budget."""
    seeds: Sequence[int] = SEEDS
    block_sizes: Sequence[int] = BLOCK_SIZES
    updates: Sequence[str] = UPDATES
    changes: Sequence[tuple[float, int]] = CHANGES
    with_dense: bool = True
    """Whether dense models take part; without them, the first static pattern is what others are compared with."""
    budgets: Sequence[str] = ("flops", "seconds")


PATTERNS = Scale(
    hidden_size=128,
    num_layers=2,
    sequence_length=64,
    petaflops=3.046e-4,
    block_sizes=(4,),
    updates=("static", "rigl"),
    changes=((0.03, 36), (0.1, 36), (0.3, 36), (0.1, 100), (0.3, 100)),
    with_dense=False,
    budgets=("flops",),
)
"""How patterns should change: 720 steps of 512 tokens each."""

SHRUNK = Scale(
    hidden_size=64,
    num_layers=1,
    sequence_length=64,
    batch_size=4,
    petaflops=3e-6,
    seconds=0.5,
    seeds=SEEDS[:2],
    block_sizes=(4,),
    updates=("static", "rigl"),
    changes=((0.1, 5),),
)


@dataclass(frozen=True)
class Model:
    """A contestant."""

    name: str
    recipe: str
    options: Mapping[str, object]


@dataclass(frozen=True)
class Outcome:
    """What came of a model, by budget, ``flops`` or ``seconds``: losses, learning rate and number of steps."""

    learning_rates: Mapping[str, float]
    steps: Mapping[str, int]
    losses: Mapping[str, Mapping[int, float]]
    """By budget, then by seed."""


def models(scale: Scale) -> list[Model]:
    """Return all contestants: the dense model of the same shape, narrower ones, sparse ones."""
    size = scale.hidden_size
    widths = [size, *(int(size * share) // 4 * 4 for share in WIDTHS)]
    dense = [Model(f"dense {width}", "demo", {"model.hidden_size": width}) for width in widths]
    sparse = [
        _sparse(size, block, update, change)
        for block in scale.block_sizes
        for update in scale.updates
        for change in (scale.changes if update != "static" else (None,))
    ]
    return dense + sparse if scale.with_dense else sparse


def _sparse(size: int, block: int, update: str, change: tuple[float, int] | None) -> Model:
    """Return a model whose pattern changes by a share of blocks every so many steps, or never."""
    options: dict[str, object] = {"model.hidden_size": size, "sparsity.block_size": block, "sparsity.update": update}
    if change is None:
        return Model(f"blocks of {block} {update}", "sparse-demo", options)
    ratio, interval = change
    options |= {"sparsity.prune_ratio": ratio, "sparsity.update_interval": interval}
    return Model(f"blocks of {block} {update} {ratio:g} every {interval}", "sparse-demo", options)


class Experiment:
    """Runs, kept in a folder; those whose result is there are not made again."""

    def __init__(self, root: Path, scale: Scale) -> None:
        self.root, self.scale = root, scale
        self.corpus = root / "corpus"

    def prepare(self) -> None:
        """Build tokenizer and corpus, unless they are there.

        Raises:
            SystemExit: the folder holds an experiment of another scale.
        """
        (self.root / "results").mkdir(parents=True, exist_ok=True)
        file, text = self.root / "scale.json", json.dumps(vars(self.scale))
        if file.exists() and file.read_text() != text:
            raise SystemExit(
                f"{self.root} holds an experiment of another scale: repeat its options, or name another folder"
            )
        file.write_text(text)
        texts = [sysconfig.get_path("stdlib"), "--suffix", ".py", "--validation", str(VALIDATION)]
        texts += [word for name in EXCLUDED for word in ("--exclude", name)]
        tokenizer, vocabulary = self.root / "tokenizer", str(self.scale.vocab_size)
        if not tokenizer.exists():
            hornbook("tokenizer", "train", *texts, "--vocab-size", vocabulary, "--output", str(tokenizer))
        if not self.corpus.exists():
            build = ["corpus", "build", *texts, "--allow", "empty-file", "--tokenizer", str(tokenizer)]
            hornbook(*build, "--output", str(self.corpus))

    def contest(self, model: Model) -> Outcome:
        """Tune a model's learning rate at both budgets, then train it with every seed."""
        steps = {"flops": self._steps_of_flops(model)}
        rates = {"flops": self._tune(model, steps["flops"])}
        if "seconds" in self.scale.budgets:
            seconds = self.train(model, steps["flops"], rates["flops"], self.scale.seeds[0])["seconds"]
            steps["seconds"] = max(1, round(self.scale.seconds * steps["flops"] / seconds))
            rates["seconds"] = self._tune(model, steps["seconds"])
        losses = {
            budget: {seed: self.train(model, count, rates[budget], seed)["loss"] for seed in self.scale.seeds}
            for budget, count in steps.items()
        }
        return Outcome(rates, steps, losses)

    def _tune(self, model: Model, steps: int) -> float:
        """Return the learning rate with the smallest loss of those tried."""
        tuned: dict[float, float] = {}
        waiting = [*LEARNING_RATES]
        for rate in waiting:  # grows on the way
            tuned[rate] = self.train(model, steps, rate, self.scale.seeds[0])["loss"]
            best = min(tuned, key=tuned.__getitem__)
            if len(LEARNING_RATES) <= len(tuned) < MOST_LEARNING_RATES and best in (min(tuned), max(tuned)):
                waiting.append(best * 2 if best == max(tuned) else best / 2)
        return best

    def _steps_of_flops(self, model: Model) -> int:
        options = [*self._options(model), f"--model.vocab-size={self.scale.vocab_size}"]
        recipe = load_recipe(model.recipe, options, require_data=False).recipe
        flops = recipe.flops_per_token(self.scale.sequence_length)
        assert flops is not None, "a GPT has a formula"
        tokens = self.scale.batch_size * self.scale.sequence_length
        return max(1, round(self.scale.petaflops * 1e15 / (flops * tokens)))

    def _options(self, model: Model) -> list[str]:
        scale = self.scale
        options = {
            "model.num_layers": scale.num_layers,
            "data.sequence_length": scale.sequence_length,
            "training.global_batch_size": scale.batch_size,
            "training.micro_batch_size": scale.batch_size,
            "precision.compute": "fp32",
            "optimizer.name": "adamw",
            "schedule.name": "cosine",
            **model.options,
        }
        return [f"--{key}={value}" for key, value in options.items()]

    def train(self, model: Model, steps: int, learning_rate: float, seed: int) -> dict[str, float]:
        """Return ``loss`` and ``seconds`` of a run, made now or before; seconds of a core, not of a clock."""
        name = f"{model.name.replace(' ', '-')}-{steps}-{learning_rate:g}-{seed}"
        file, runs = self.root / "results" / f"{name}.json", self.root / "runs"
        if not file.exists():
            runs.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=runs) as folder:
                result = self._measure(model, steps, learning_rate, seed, Path(folder) / "run")
            partial = file.with_suffix(".partial")
            partial.write_text(json.dumps(result))
            partial.rename(file)
            print(f"{name}: loss {result['loss']:.4f}, {result['seconds']:.1f} s", file=sys.stderr, flush=True)
        kept: dict[str, float] = json.loads(file.read_text())
        return kept

    def _measure(self, model: Model, steps: int, learning_rate: float, seed: int, run: Path) -> dict[str, float]:
        options = [
            *self._options(model),
            f"--data.train={self.corpus}",
            f"--training.steps={steps}",
            f"--training.seed={seed}",
            f"--optimizer.learning-rate={learning_rate}",
            f"--schedule.warmup-steps={max(1, steps // 20)}",
            f"--checkpoint.every-steps={steps}",
            f"--evaluation.every-steps={steps}",
            "--evaluation.max-windows=256",
            "--tracking.sample-every-steps=none",
        ]
        start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        found = hornbook("train", model.recipe, *options, "--output", str(run), "--threads", "1")
        elapsed, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        share = min(1.0, (after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime) / elapsed)
        return {"loss": found["validation_loss"], "seconds": found["seconds"] * share}


def table(outcomes: Mapping[str, Outcome]) -> str:
    """Return the markdown table of all models, with differences by seed.

    They are those from the best narrower dense model; from the first model if none is dense.
    """
    dense = [name for name in outcomes if name.startswith("dense")]
    lines = ["| model |", "|---|", *(f"| {name} |" for name in outcomes)]
    for budget, title in (("flops", "equal FLOPs"), ("seconds", "equal time")):
        if any(budget not in outcome.losses for outcome in outcomes.values()):
            continue
        best = min(
            dense[1:] or [*outcomes][:1], key=lambda name: statistics.mean(outcomes[name].losses[budget].values())
        )
        lines[0] += f" steps | learning rate | loss, {title} | minus {best} |"
        lines[1] += "---|---|---|---|"
        for number, outcome in enumerate(outcomes.values(), start=2):
            losses, others = outcome.losses[budget], outcomes[best].losses[budget]
            difference = with_error([loss - others[seed] for seed, loss in losses.items()], "+")
            loss = with_error(list(losses.values()))
            lines[number] += (
                f" {outcome.steps[budget]:,} | {outcome.learning_rates[budget]:g} | {loss} | {difference} |"
            )
    return "\n".join(lines)


def with_error(numbers: Sequence[float], sign: str = "") -> str:
    """Return the mean of some numbers and its standard error."""
    error = statistics.stdev(numbers) / len(numbers) ** 0.5
    return f"{statistics.mean(numbers):{sign}.3f} ± {error:.3f}"


def main() -> None:
    """Make the runs that are missing and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog="A second call continues the experiment in the folder."
    )
    parser.add_argument("folder", type=Path, help="of results, corpus and tokenizer")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="runs at once, a thread each (default: 1)")
    parser.add_argument("--patterns", action="store_true", help="compare prune ratios and intervals of RigL alone")
    parser.add_argument("--shrink", action="store_true", help="tiny models, few of them: tests the script alone")
    arguments = parser.parse_args()
    scale = SHRUNK if arguments.shrink else PATTERNS if arguments.patterns else Scale()
    experiment = Experiment(arguments.folder, scale)
    experiment.prepare()
    contestants = models(scale)
    with ProcessPoolExecutor(arguments.workers) as pool:
        outcomes = dict(
            zip([model.name for model in contestants], pool.map(experiment.contest, contestants), strict=True)
        )
    print(table(outcomes))


if __name__ == "__main__":
    main()
