"""Runs that go on with another number of ranks: the same samples, losses and progress as those of one process.

    world-sizes   save on N ranks, resume on M, N and M of 1, 2, 3, 4, 6 and 8, a GPT and a BERT
    elastic       1 -> 2 -> 4 -> 3 -> 1 ranks, or other sizes, stopped or killed, while other processes take the cores

Sizes are split as the draws say: replicas, shards, tensors, pipelines, and products of them. Epochs are so short that
a run of the first part has two to three; an epoch may end in mid-step. What is compared:

- Every sample of every step, with its tokens, targets, masks, positions and keys of dropout, in the same order.
- The log, losses, norms and validation: to 1e-6 in fp32 (docs/parallel.md, "Equal results on every layout";
  tests/parallel/test_checkpoint_pairs.py); bit for bit if all layouts compute as one process does: pipelines without
  other axes and phased execution, with PyTorch's operators.
- Progress: integers exactly, other numbers as the log.
- With the same number of ranks, in the same layout: all files, bit for bit, as those of a run that nobody stopped
  (docs/distributed.md, "When a rank fails").
"""

import hashlib
import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tiny_runs
from small_runs import merged, newest_step
from tiny_encoder_runs import assert_same_rows, build_sentences
from tiny_layouts import words_of
from tiny_text import build_tiny
from trials import Part, Trial, fork
from worlds import HYBRID, PHASED, PIPELINE, SCHEDULE, SEQUENCE, SHARD, TENSOR, ends_of, fork_ranks

from hornbook.cli.main import main
from hornbook.parallel import launched
from hornbook.run import loop
from hornbook.samples.batches import Batch
from hornbook.track.metrics import read

KINDS = {"GPT": ("gpt", "adamw"), "BERT": ("bert padded", "lamb"), "decoder": ("decoder", "muon")}
SIZES = (1, 2, 3, 4, 6, 8)
_STOPPED, _SAVED_EVERY = 75, 2
_CLOCKS = ("seconds", "tokens_per_second", "tflops", "mfu")
_EXACT = ("one process", "phased", "1f1b", "v-shaped")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A start of a run: on how many ranks, and after which step a signal reaches a rank; None for the end."""

    size: int
    layout: str
    options: tuple[str, ...]
    step: int | None = None
    signal: int = signal.SIGTERM
    rank: int | None = None
    """Which rank gets the signal; None for all."""

    @property
    def name(self) -> str:
        """As it is shown."""
        end = "" if self.step is None else f" to {self.step}{', killed' * (self.signal == signal.SIGKILL)}"
        return f"{self.size} ({self.layout}){end}"


def layouts_of(size: int) -> dict[str, tuple[str, ...]]:
    """Return the options of the layouts of so many ranks, by name."""
    found = {"data": "", "shard": SHARD, "phased shards": f"{SHARD} {PHASED}"}
    if size == 1:
        found = {"one process": "", "phased": PHASED}
    for unit in (2, 3):
        if size % unit == 0:
            rest = f" x data {size // unit}" if size > unit else ""
            found[f"1f1b{rest}"] = f"{PIPELINE}{unit}"
        if size % unit == 0 and size > unit:
            found[f"hybrid of {unit}"] = f"{HYBRID}{unit}"
    if size % 2 == 0:
        found["tensor 2"] = f"{TENSOR}2"
        found["sequence 2 x shard"] = f"{TENSOR}2 {SEQUENCE} {SHARD}"
        found["v-shaped" if size == 2 else "v-shaped x data"] = f"{PIPELINE}2 {SCHEDULE}v-shaped"
    if size % 4 == 0:
        found |= {"1f1b 2 x shard": f"{PIPELINE}2 {SHARD}", "1f1b 2 x tensor 2": f"{PIPELINE}2 {TENSOR}2"}
    return {name: tuple(f"--{option}" for option in options.split()) for name, options in found.items()}


def words_in(shared: Path, run: Path, kind: str, steps: int) -> list[str]:
    """Return the words after ``hornbook`` for a training of ``kind`` in the folder ``run``, in one process."""
    is_encoder, global_batch_size = kind == "BERT", 24 if steps == PAIR_STEPS else 12
    corpus = shared / ("sentences" if is_encoder else "corpus")
    words = merged(
        words_of(*KINDS[kind]),
        f"data.train={corpus}",
        f"data.validation={corpus}",
        "data.synthetic=false",
        f"data.max_samples={48 if is_encoder else 57}",
        f"model.vocab_size={'none' if is_encoder else 300}",
        "model.hidden_size=48",  # which three and eight shards divide
        f"model.max_positions={32 if is_encoder else 16}",
        f"data.sequence_length={32 if is_encoder else 16}",
        f"training.steps={steps}",
        f"training.global_batch_size={global_batch_size}",
        "training.micro_batch_size=1",
        "precision.kernels=torch",
        f"checkpoint.every_steps={_SAVED_EVERY}",
        "tracking.log_every_steps=1",
        "evaluation.every_steps=3",
        "evaluation.max_windows=8",
    )
    return ["train", *words, f"--output={run}", "--device=cpu", "--threads=1"]


def _train(words: list[str], given: Path, stage: Stage) -> int:
    """Train as a rank that writes down the samples of its steps, and that may get a signal."""
    train_step = loop.train_step  # type: ignore[attr-defined]

    def record(state: Any, micro_batches: list[Batch], config: Any, *others: Any) -> Any:
        result = train_step(state, micro_batches, config, *others)
        row = [state.progress.step, config.world.data.rank, [_hash_of(batch) for batch in micro_batches]]
        with given.with_name(f"{given.name}-{launched.rank()}").open("a") as file:
            file.write(json.dumps(row) + "\n")
        return result

    loop.train_step = record  # type: ignore[attr-defined,assignment]
    if stage.step is not None and stage.rank in (None, launched.rank()):
        tiny_runs.stop_after(pytest.MonkeyPatch(), stage.step, stage.signal)
    return main(words)


def _hash_of(batch: Batch) -> str:
    """Return the hash of a micro-batch, which is one sample."""
    content = b"".join(name.encode() + batch[name].numpy().tobytes() for name in sorted(batch))
    return hashlib.sha256(content).hexdigest()[:16]


def _start(words: list[str], run: Path, stage: Stage, number: int, log: Path) -> list[int]:
    """Run a stage to its end, and return the exit codes of its ranks."""
    given = run.with_name("given") / str(number)
    given.parent.mkdir(exist_ok=True)
    return ends_of(fork_ranks(stage.size, partial(_train, [*words, *stage.options], given, stage), log))


def _samples(run: Path, number: int) -> dict[int, list[str]]:
    """Return the samples of each step of a stage, in the order of the global batch; of steps that all ranks began."""
    shares: dict[int, dict[int, list[str]]] = {}
    paths = list(run.with_name("given").glob(f"{number}-*"))
    seen: dict[int, int] = {}
    for path in paths:
        for step, share, samples in map(json.loads, path.read_text().splitlines()):
            of_step = shares.setdefault(step, {})
            assert of_step.setdefault(share, samples) == samples, f"ranks of a share see other samples in step {step}"
            seen[step] = seen.get(step, 0) + 1
    return {
        step: [sample for dealt in zip(*(of[share] for share in sorted(of)), strict=True) for sample in dealt]
        for step, of in sorted(shares.items())
        if seen[step] == len(paths)
    }


def _whole(shared: Path, kind: str, steps: int) -> None:
    """Train in one process, from beginning to end."""
    run = shared / f"{kind} {steps}" / "run"
    run.parent.mkdir()
    stage = Stage(size=1, layout="one process", options=())
    codes = _start(words_in(shared, run, kind, steps), run, stage, 0, shared / "log")
    assert codes == [0], f"{kind}: exit codes {codes}"


def _build(shared: Path) -> None:
    build_tiny(shared / "corpus")
    build_sentences(shared / "sentences")


def _run_stages(trial: Trial, kind: str, steps: int, stages: Sequence[Stage]) -> float:
    """Train in stages, compare with one process, and return the largest relative difference of the losses."""
    whole, run = trial.shared / f"{kind} {steps}" / "run", trial.folder / "run"
    words, expected, begun = words_in(trial.shared, run, kind, steps), _samples(whole, 0), 0
    for number, stage in enumerate(stages):
        codes = _start(words, run, stage, number, trial.log)
        print(f"{stage.name}: {codes}", flush=True)
        samples = _samples(run, number)
        assert all(expected[step] == found for step, found in samples.items()), f"{stage.name}: other samples"
        if stage.step is None:
            assert set(codes) == {0}, f"{stage.name}: exit codes {codes}"
            assert list(samples) == list(range(begun + 1, steps + 1)), f"{stage.name}: steps {list(samples)}"
            continue
        is_killed = stage.signal == signal.SIGKILL
        allowed = {-signal.SIGKILL, 1} if is_killed else {_STOPPED}
        assert set(codes) <= allowed, f"{stage.name}: exit codes {codes}"
        reached = stage.step - is_killed  # ranks that are killed have perhaps not all finished their step
        assert [step for step in samples if step <= reached] == list(range(begun + 1, reached + 1)), stage.name
        saved = max(begun, reached // _SAVED_EVERY * _SAVED_EVERY) if is_killed else reached
        begun = newest_step(run)
        assert begun == saved, f"{stage.name}: step {begun} is saved, not {saved}"
    is_exact = all(stage.layout in _EXACT for stage in stages)
    return _compare(run, whole, steps, 0.0 if is_exact else 1e-6)


def _compare(run: Path, whole: Path, steps: int, tolerance: float) -> float:
    logs = [
        [
            {key: value for key, value in row.items() if not key.startswith(("idle/", "bytes_"))}
            for row in read(at / "metrics.jsonl")
        ]
        for at in (run, whole)
    ]
    assert [(row["kind"], row["step"]) for row in logs[0]] == [(row["kind"], row["step"]) for row in logs[1]]
    assert_same_rows(*logs, tolerance, but=_CLOCKS)
    states = [json.loads((at / "checkpoints" / f"step-{steps:08d}" / "state.json").read_text()) for at in (run, whole)]
    assert_same_rows([{**states[0], "loss": 0.0}], [{**states[1], "loss": 0.0}], tolerance, but=_CLOCKS)
    pairs = [[row["loss"] for row in log if row["kind"] == "train"] for log in logs]
    return float(max(abs(a - b) / b for a, b in zip(*pairs, strict=True)))


def _draw(draws: Random, size: int, **others: Any) -> Stage:
    layout, options = draws.choice(list(layouts_of(size).items()))
    return Stage(size=size, layout=layout, options=options, **others)


PAIR_STEPS = 5
PAIRS = [(saving, resuming) for saving in SIZES for resuming in SIZES]


def _prepare_pairs(shared: Path) -> None:
    _build(shared)
    for kind in ("GPT", "BERT"):
        _whole(shared, kind, PAIR_STEPS)


def _run_pair(trial: Trial) -> str:
    (saving, resuming), turn = PAIRS[trial.number % len(PAIRS)], trial.number // len(PAIRS)
    kind = ("GPT", "BERT")[(SIZES.index(saving) + SIZES.index(resuming) + turn) % 2]
    step = trial.draws.randint(1, PAIR_STEPS - 1)
    first = _draw(trial.draws, saving, step=step, rank=trial.draws.randrange(saving))
    second = _draw(trial.draws, resuming)
    if saving == resuming:
        second = Stage(size=resuming, layout=first.layout, options=first.options)
    off = _run_stages(trial, kind, PAIR_STEPS, (first, second))
    if saving == resuming:
        (trial.folder / "undisturbed").mkdir()
        run = trial.folder / "undisturbed" / "run"
        codes = _start(words_in(trial.shared, run, kind, PAIR_STEPS), run, second, 0, trial.log)
        assert set(codes) == {0}, f"undisturbed: exit codes {codes}"
        ours, theirs = (tiny_runs.digest(at.parent, PAIR_STEPS) for at in (trial.folder / "run", run))
        assert ours == theirs, f"{first.name}, then the same: it ended in another state"
    return f"{kind}, {first.name}, then {second.name}: {off:.0e}"


WORLD_SIZES = Part(
    name="world-sizes",
    promise="a run that N ranks save and M resume, N and M of 1, 2, 3, 4, 6 and 8, in layouts as drawn, has the "
    "samples and masks of one process in the same order, and its losses to 1e-6; with N = M, it ends bit for bit as a "
    "run that nobody stopped",
    run=_run_pair,
    prepare=_prepare_pairs,
    trials=len(PAIRS),
    short=0,
)

ELASTIC_STEPS = 10
_FIRST = (1, 2, 4, 3, 1)
_ELASTIC_SIZES = (1, 2, 3, 4, 6)


def _prepare_elastic(shared: Path) -> None:
    _build(shared)
    for kind in KINDS:
        _whole(shared, kind, ELASTIC_STEPS)


def _run_elastic(trial: Trial) -> str:
    """Train in five stages; every second stop is a kill of all ranks, as if the machine was lost."""
    draws, kind = trial.draws, list(KINDS)[trial.number % len(KINDS)]
    sizes = list(_FIRST[:1])
    while len(sizes) < len(_FIRST):
        sizes.append(draws.choice([size for size in _ELASTIC_SIZES if size != sizes[-1]]))
    if trial.number < len(KINDS):
        sizes = list(_FIRST)
    stops = sorted(draws.sample(range(1, ELASTIC_STEPS), len(sizes) - 1))
    stages = [_draw(draws, sizes[0], step=stops[0], rank=0)]
    for number, (size, step) in enumerate(zip(sizes[1:-1], stops[1:], strict=True)):
        is_kill = (trial.number + number) % 2 == 0
        ends = {"signal": signal.SIGKILL} if is_kill else {"rank": draws.randrange(size)}
        stages.append(_draw(draws, size, step=step, **ends))
    stages.append(_draw(draws, sizes[-1]))
    with _load(trial.folder):
        off = _run_stages(trial, kind, ELASTIC_STEPS, stages)
    return f"{kind}, {' -> '.join(stage.name for stage in stages)}: {off:.0e}"


@contextmanager
def _load(folder: Path) -> Iterator[None]:
    """Keep the processors and the disk busy: a process for each core computes, one writes and syncs."""
    children = [_fork_to(_compute) for _ in range(os.cpu_count() or 1)] + [_fork_to(partial(_write, folder / "busy"))]
    try:
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _fork_to(action: Any) -> int:
    child = fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(1)
    return child


def _compute() -> None:
    while True:
        sum(range(100_000))


def _write(path: Path) -> None:
    while True:
        with path.open("wb") as file:
            file.write(bytes(1 << 20))
            os.fsync(file.fileno())


ELASTIC = Part(
    name="elastic",
    promise="a run whose world grows and shrinks four times, stopped or killed, on a busy machine, has the samples, "
    "losses and progress of one process that nobody disturbed",
    run=_run_elastic,
    prepare=_prepare_elastic,
    trials=12,
    short=0,
)
