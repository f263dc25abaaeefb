"""What is learned in the same minutes: the demo's model, GPT-2 with AdamW, and nanochat's own model and optimizer.

::

    git clone https://github.com/karpathy/nanochat
    python benchmarks/learning_peers.py results --nanochat nanochat --corpus py books owt --seeds 3

All have 4 layers of 256 columns, windows of 256 tokens and 16 windows a step, and train for as many steps as the
budget in processor time pays for, on one thread, so that other processes on the machine change neither the number of
steps nor the result. nanochat's step is compiled, in bf16, or in fp32 with ``--dtype float32`` for processors that
emulate bf16; its compilation is not counted. Its rates are for batches of 524,288 tokens; ``--factor`` scales them all.
Bits per byte are those of ``hornbook evaluate`` for all: the whole held-out split, in windows of 256 tokens that
overlap by 128.

Each run is one file ``results/*.json``; a second call skips the runs that are there. Runs alternate between contenders.
"""

import argparse
import importlib
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from commands import hornbook, seconds_of, step_seconds
from hornbook.corpora.store import TokenStore, open_store
from hornbook.samples.windows import EvaluationWindows, Stream

_LENGTH, _BATCH = 256, 16
_SIZES = {"n_layer": 4, "n_embd": 256, "n_head": 4, "n_kv_head": 4, "sequence_len": _LENGTH, "window_pattern": "L"}
_CONSTANT_SHARE, _LAST_RATE, _WARM_UP = 0.35, 0.05, 40
_HORNBOOK = {
    "hornbook": ("decoder-demo", []),
    "GPT-2, AdamW": ("demo", ["--optimizer.name=adamw", "--optimizer.learning-rate=3e-3", "--schedule.name=cosine"]),
}


@dataclass(frozen=True)
class Task:
    """A run: the contender's number of steps follows from the budget."""

    corpus: Path
    seconds: float
    seed: int


def train_hornbook(task: Task, recipe: str, words: list[str]) -> dict[str, float]:
    """Train a recipe and evaluate it, both by hornbook's commands."""
    price = step_seconds(recipe, task.corpus, words)
    steps = max(1, round(task.seconds / price))
    length = [f"--training.steps={steps}", f"--schedule.warmup-steps={max(1, min(100, steps // 10))}"]
    quiet = [
        "--evaluation.every-steps=100000",
        "--tracking.sample-every-steps=none",
        f"--checkpoint.every-steps={steps}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        output = ["--output", str(Path(folder) / "run"), "--threads", "1", f"--training.seed={task.seed}"]
        hornbook("train", recipe, "--data.train", str(task.corpus), *words, *length, *quiet, *output)
        found: Any = hornbook("evaluate", str(Path(folder) / "run"), "--tasks", "bits_per_byte")
    row = found["tasks"][0]["rows"][0]
    assert row["metric"] == "bits_per_byte"
    return {"steps": steps, "step_seconds": price, "bits_per_byte": row["value"]}


def train_nanochat(task: Task, factor: float) -> dict[str, float]:
    """Train nanochat's model with its optimizer and schedule, all rates times ``factor``."""
    gpt: Any = importlib.import_module("nanochat.gpt")
    torch.set_num_threads(1)
    torch.manual_seed(task.seed)
    store = open_store(task.corpus, "train")
    with torch.device("meta"):
        model = gpt.GPT(gpt.GPTConfig(vocab_size=store.vocab_size, **_SIZES))
    model.to_empty(device="cpu")
    model.init_weights()
    optimizer = model.setup_optimizer(
        unembedding_lr=0.008 * factor, embedding_lr=0.3 * factor, scalar_lr=0.5 * factor, matrix_lr=0.02 * factor
    )
    compiled: Any = torch.compile(model, dynamic=False)
    batches = windows(store, task.seed)

    def step() -> None:
        rows = next(batches)
        compiled(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()).backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)

    for group in optimizer.param_groups:
        group["lr"] = 0.0  # the timed steps change no weight
    price = seconds_of(step)
    optimizer.state.clear()
    batches = windows(store, task.seed)
    steps = max(1, round(task.seconds / price))
    for number in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate_share(number, steps)
            if group["kind"] == "muon":
                group["momentum"] = momentum(number, steps)
        step()
    return {
        "steps": steps,
        "step_seconds": price,
        "bits_per_byte": bits_per_byte(model, open_store(task.corpus, "validation")),
    }


def windows(store: TokenStore, seed: int) -> Iterator[torch.Tensor]:
    """Yield batches of windows, int64[16, 257], in another random order in each epoch."""
    draw, stream = np.random.default_rng(seed), Stream(store)
    starts = np.arange(0, stream.length - _LENGTH, _LENGTH)
    while True:
        order = draw.permutation(starts)
        for at in range(0, len(order) - _BATCH + 1, _BATCH):
            yield torch.from_numpy(stream.read(order[at : at + _BATCH], _LENGTH + 1).tokens)


def rate_share(step: int, steps: int) -> float:
    """Return the share of the peak rate: nanochat's warm-up, constant part and linear decay."""
    warm, share = min(1.0, (step + 1) / _WARM_UP), step / steps
    if share <= _CONSTANT_SHARE:
        return warm
    return warm * (_LAST_RATE + (1 - _LAST_RATE) * (1 - share) / (1 - _CONSTANT_SHARE))


def momentum(step: int, steps: int) -> float:
    """Return nanochat's momentum of Muon, which rises over 400 steps and falls with the rate."""
    share = step / steps
    if share <= _CONSTANT_SHARE:
        return 0.85 + 0.12 * min(1.0, step / 400)
    return 0.97 - 0.07 * (share - _CONSTANT_SHARE) / (1 - _CONSTANT_SHARE)


@torch.no_grad()
def bits_per_byte(model: torch.nn.Module, store: TokenStore) -> float:
    """Return the bits per byte of a store over the windows of ``hornbook evaluate``."""
    held_out = EvaluationWindows(store, _LENGTH, score_end_of_text=False, overlap=_LENGTH // 2)
    model.eval()
    nats = 0.0
    for number in range(held_out.num_items):
        part = held_out.window(number)
        tokens, targets = (torch.from_numpy(np.array(ids))[None] for ids in (part.tokens, part.targets))
        logits = model(tokens)[0].float()
        nats += torch.nn.functional.cross_entropy(logits, targets[0], ignore_index=-100, reduction="sum").item()
    assert store.num_bytes, "hornbook's own stores count the bytes of the text"
    return nats / math.log(2) / store.num_bytes


def main() -> None:
    """Run what is missing, and print means and ranges over the seeds as a markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="of the results")
    parser.add_argument("--nanochat", type=Path, help="a clone of nanochat (default: do not run it)")
    parser.add_argument("--corpus", type=Path, nargs="+", required=True, help="output folders of hornbook corpus build")
    parser.add_argument("--seconds", type=float, default=576, help="processor time of a run (default: 576)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each contender (default: 1)")
    parser.add_argument("--factor", type=float, nargs="+", default=[0.3], help="of nanochat's rates (default: 0.3)")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="of nanochat's products")
    parser.add_argument("--only", nargs="+", help="contenders to run, by their names in the table (default: all)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    contenders: dict[str, Callable[[Task], dict[str, float]]] = {
        name: partial(train_hornbook, recipe=recipe, words=words) for name, (recipe, words) in _HORNBOOK.items()
    }
    if given.nanochat:
        sys.path.insert(0, str(given.nanochat))
        os.environ["NANOCHAT_DTYPE"] = given.dtype
        for factor in given.factor:
            contenders[f"nanochat, rates × {factor:g}"] = partial(train_nanochat, factor=factor)
    if unknown := set(given.only or ()) - contenders.keys():
        parser.error(f"unknown: {', '.join(map(repr, unknown))}; expected {', '.join(map(repr, contenders))}")
    contenders = {name: train for name, train in contenders.items() if not given.only or name in given.only}
    tasks = [Task(corpus, given.seconds, seed) for seed in range(given.seeds) for corpus in given.corpus]
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for task in tasks:
        for name, train in contenders.items():
            file = given.folder / f"{task.corpus.name} {name} {task.seconds:g}s seed {task.seed}.json"
            if not file.exists():
                file.with_suffix(".partial").write_text(json.dumps(train(task)))
                file.with_suffix(".partial").rename(file)
                print(f"{file.stem}: {file.read_text()}", file=sys.stderr, flush=True)
            found.setdefault((task.corpus.name, name), []).append(json.loads(file.read_text()))
    print(
        "| corpus | model | s a step | steps | bits per byte, mean | least to greatest |",
        "|---|---|---|---|---|---|",
        sep="\n",
    )
    for (corpus, name), runs in found.items():
        scores = [run["bits_per_byte"] for run in runs]
        price, steps = (statistics.median(run[key] for run in runs) for key in ("step_seconds", "steps"))
        spread = f"{min(scores):.4f} to {max(scores):.4f}"
        print(f"| {corpus} | {name} | {price:.3f} | {steps:.0f} | {statistics.mean(scores):.4f} | {spread} |")


if __name__ == "__main__":
    main()
