"""Does a block-sparse model learn better than a dense one? One experiment, on a CPU.

A GPT whose linear maps keep 10 % of their blocks is compared with the dense model of the same shape, and with the best
of some narrower dense models, at equal training FLOPs and at equal wall-clock time::

    python benchmarks/sparse_learning.py sparse-learning --workers 2           # two quiet cores, an hour and a half
    python benchmarks/sparse_learning.py sparse-patterns --patterns            # a quiet core, half an hour
    python benchmarks/sparse_learning.py sparse-long --long --workers 2        # two quiet cores, an hour
    python benchmarks/sparse_learning.py /tmp/shrunk --shrink                  # minutes, a test of the script alone

With ``--patterns``, smaller models with blocks of 4 show how much of a pattern should change at a time, and how often:
RigL with several prune ratios and intervals is compared with the static pattern, at equal FLOPs.

With ``--long``, a small sparse model is trained far beyond the tokens that pay for its size, and compared at equal
times with dense models that have as many weights in their linear layers, or in all.

For each model and its first budget the learning rate is tuned with the first seed: four values, and further ones as
long as the best is at an end of those tried; for a longer budget that rate and its half. (That of blocks is higher by
``sparsity.learning_rate_scale``.) The best one is run with all seeds. Models of one seed see the same windows in the
same order, so differences are taken seed by seed. Time is processor time on one thread: a step of each model is
measured in turns with the others, without updates of patterns, and a budget pays for so many steps.

Each run is one file ``results/*.json``; a second call skips the runs that are there, so the experiment resumes where it
was stopped. The corpus is that of ``hornbook demo``, the texts of Python's standard library. The table is printed as
markdown: mean validation loss, nats a token, with standard errors over the seeds.
"""

import argparse
import json
import statistics
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from commands import hornbook, step_seconds
from hornbook.cli.demo_command import EXCLUDED, VALIDATION
from hornbook.config import load_recipe

LEARNING_RATES = (0.75e-3, 1.5e-3, 3e-3, 6e-3)
MOST_LEARNING_RATES = 6
SEEDS = (0, 1, 2)
TIMED_ROUNDS = 5
EVALUATED_TOKENS = 1 << 15
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
    petaflops: float | None = 2.5e-3
    """Training FLOPs of a run at the first budget, in 10¹⁵; None for no such budget."""
    seconds: Sequence[float] = (40.0,)
    """Processor time of a run at each of the other budgets."""
    dense_widths: Sequence[int] = (256, 64, 80, 112)
    """Hidden sizes of the dense models; without them, the first static pattern is what others are compared with."""
    seeds: Sequence[int] = SEEDS
    block_sizes: Sequence[int] = BLOCK_SIZES
    updates: Sequence[str] = UPDATES
    changes: Sequence[tuple[float, int]] = CHANGES

    @property
    def budgets(self) -> list[str]:
        """Titles of the budgets, in the order of the table."""
        return ["equal FLOPs"] * (self.petaflops is not None) + [f"{seconds:g} s" for seconds in self.seconds]


PATTERNS = Scale(
    hidden_size=128,
    num_layers=2,
    sequence_length=64,
    petaflops=3.046e-4,
    block_sizes=(4,),
    updates=("static", "rigl"),
    changes=((0.03, 36), (0.1, 36), (0.3, 36), (0.1, 100), (0.3, 100)),
    dense_widths=(),
    seconds=(),
)
"""How patterns should change: 720 steps of 512 tokens each."""

LONG = Scale(
    hidden_size=128,
    num_layers=2,
    sequence_length=64,
    batch_size=16,
    petaflops=None,
    seconds=(20.0, 75.0, 300.0),
    dense_widths=(40, 56, 72),
    block_sizes=(4,),
    updates=("static",),
)
"""Far beyond the tokens that pay: the linear layers have as many weights as dense ones of 40 columns, and the model has
between those of dense ones of 56 and 72."""

SHRUNK = Scale(
    hidden_size=64,
    num_layers=1,
    sequence_length=64,
    batch_size=4,
    petaflops=3e-6,
    seconds=(0.5,),
    dense_widths=(64, 16, 20, 28),
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
    """What came of a model at one budget."""

    learning_rate: float
    steps: int
    losses: Mapping[int, float]
    """By seed."""


def models(scale: Scale) -> list[Model]:
    """Return all contestants: the dense model of the same shape, narrower ones, sparse ones."""
    size = scale.hidden_size
    dense = [Model(f"dense {width}", "demo", {"model.hidden_size": width}) for width in scale.dense_widths]
    sparse = [
        _sparse(size, block, update, change)
        for block in scale.block_sizes
        for update in scale.updates
        for change in (scale.changes if update != "static" else (None,))
    ]
    return dense + sparse


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

    def time_steps(self, contestants: Sequence[Model]) -> None:
        """Measure the processor time of a step of each model, in turns, unless that was done before."""
        file = self.root / "step_seconds.json"
        if not file.exists():
            with ProcessPoolExecutor(1) as alone:
                rounds = [
                    {model.name: alone.submit(self._step_seconds, model).result() for model in contestants}
                    for _ in range(TIMED_ROUNDS)
                ]
            medians = {model.name: statistics.median(each[model.name] for each in rounds) for model in contestants}
            file.write_text(json.dumps(medians))
        self.step_seconds: dict[str, float] = json.loads(file.read_text())

    def contest(self, model: Model) -> dict[str, Outcome]:
        """Tune a model's learning rate at each budget, then train it with every seed."""
        all_steps = [] if self.scale.petaflops is None else [self._steps_of_flops(model, self.scale.petaflops)]
        all_steps += [max(1, round(seconds / self.step_seconds[model.name])) for seconds in self.scale.seconds]
        outcomes: dict[str, Outcome] = {}
        rates: Sequence[float] = LEARNING_RATES
        for budget, steps in zip(self.scale.budgets, all_steps, strict=True):
            best = self._tune(model, steps, rates)
            losses = {seed: self.train(model, steps, best, seed) for seed in self.scale.seeds}
            outcomes[budget], rates = Outcome(best, steps, losses), (best, best / 2)
        return outcomes

    def _tune(self, model: Model, steps: int, rates: Sequence[float]) -> float:
        """Return the learning rate with the smallest loss; at the first budget, further ones are tried."""
        tuned: dict[float, float] = {}
        waiting = [*rates]
        for rate in waiting:  # grows on the way
            tuned[rate] = self.train(model, steps, rate, self.scale.seeds[0])
            best = min(tuned, key=tuned.__getitem__)
            if len(LEARNING_RATES) <= len(tuned) < MOST_LEARNING_RATES and best in (min(tuned), max(tuned)):
                waiting.append(best * 2 if best == max(tuned) else best / 2)
        return best

    def _step_seconds(self, model: Model) -> float:
        return step_seconds(model.recipe, self.corpus, self._options(model))

    def _steps_of_flops(self, model: Model, petaflops: float) -> int:
        options = [*self._options(model), f"--model.vocab-size={self.scale.vocab_size}"]
        recipe = load_recipe(model.recipe, options, require_data=False).recipe
        flops = recipe.flops_per_token(self.scale.sequence_length)
        assert flops is not None, "a GPT has a formula"
        tokens = self.scale.batch_size * self.scale.sequence_length
        return max(1, round(petaflops * 1e15 / (flops * tokens)))

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

    def train(self, model: Model, steps: int, learning_rate: float, seed: int) -> float:
        """Return the validation loss of a run, made now or before."""
        name = f"{model.name.replace(' ', '-')}-{steps}-{learning_rate:g}-{seed}"
        file, runs = self.root / "results" / f"{name}.json", self.root / "runs"
        if not file.exists():
            runs.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=runs) as folder:
                loss = self._measure(model, steps, learning_rate, seed, Path(folder) / "run")
            partial = file.with_suffix(".partial")
            partial.write_text(json.dumps({"loss": loss}))
            partial.rename(file)
            print(f"{name}: loss {loss:.4f}", file=sys.stderr, flush=True)
        return float(json.loads(file.read_text())["loss"])

    def _measure(self, model: Model, steps: int, learning_rate: float, seed: int, run: Path) -> float:
        options = [
            *self._options(model),
            f"--data.train={self.corpus}",
            f"--training.steps={steps}",
            f"--training.seed={seed}",
            f"--optimizer.learning-rate={learning_rate}",
            f"--schedule.warmup-steps={max(1, steps // 20)}",
            f"--checkpoint.every-steps={steps}",
            f"--evaluation.every-steps={steps}",
            f"--evaluation.max-windows={EVALUATED_TOKENS // self.scale.sequence_length}",
            "--tracking.sample-every-steps=none",
        ]
        return hornbook("train", model.recipe, *options, "--output", str(run), "--threads", "1")["validation_loss"]


def table(outcomes: Mapping[str, Mapping[str, Outcome]]) -> str:
    """Return the markdown table of all models, by budget, with differences by seed.

    They are those from the best dense model; from the first model if none is dense.
    """
    dense = [name for name in outcomes if name.startswith("dense")] or [*outcomes][:1]
    lines = ["| model |", "|---|", *(f"| {name} |" for name in outcomes)]
    for budget in next(iter(outcomes.values())):
        best = min(dense, key=lambda name: statistics.mean(outcomes[name][budget].losses.values()))
        lines[0] += f" steps | learning rate | loss, {budget} | minus {best} |"
        lines[1] += "---|---|---|---|"
        for number, by_budget in enumerate(outcomes.values(), start=2):
            outcome, others = by_budget[budget], outcomes[best][budget].losses
            difference = with_error([loss - others[seed] for seed, loss in outcome.losses.items()], "+")
            loss = with_error(list(outcome.losses.values()))
            lines[number] += f" {outcome.steps:,} | {outcome.learning_rate:g} | {loss} | {difference} |"
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
    parser.add_argument("--long", action="store_true", help="train small models for long")
    parser.add_argument("--shrink", action="store_true", help="tiny models, few of them: tests the script alone")
    arguments = parser.parse_args()
    scale = SHRUNK if arguments.shrink else PATTERNS if arguments.patterns else LONG if arguments.long else Scale()
    experiment = Experiment(arguments.folder, scale)
    experiment.prepare()
    contestants = models(scale)
    experiment.time_steps(contestants)
    with ProcessPoolExecutor(arguments.workers) as pool:
        outcomes = dict(
            zip([model.name for model in contestants], pool.map(experiment.contest, contestants), strict=True)
        )
    print(table(outcomes))


if __name__ == "__main__":
    main()
