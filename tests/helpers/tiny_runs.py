"""Runs of a few steps that leave real folders, and the state that they end in."""

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hornbook.config import Resolved, load_recipe
from hornbook.engine.step import StepResult
from hornbook.run.launch import train
from hornbook.run.training_run import TrainingRun
from hornbook.samples.batches import Batch, Loader

RECIPE = """
[model]
num_layers = 2
hidden_size = 32
num_heads = 2
vocab_size = 70
max_positions = 16
embedding_dropout = 0.1
residual_dropout = 0.1
[data]
synthetic = true
[training]
steps = 8
global_batch_size = 4
micro_batch_size = 2
[optimizer]
learning_rate = 1e-2
[schedule]
warmup_steps = 3
[precision]
compute = "fp32"
[checkpoint]
every_steps = 3
[tracking]
log_every_steps = 1
"""


def tiny_recipe(folder: Path, *overrides: str) -> Resolved:
    """The recipe above with overrides, such as ``"--training.steps=9"``."""
    path = folder / "tiny.toml"
    path.write_text(RECIPE)
    return load_recipe(str(path), overrides)


def run_tiny(folder: Path, *overrides: str) -> dict[str, Any]:
    """Train in ``folder / "run"`` on one thread."""
    folder.mkdir(exist_ok=True)
    return train(tiny_recipe(folder, *overrides), output=folder / "run", device="cpu", threads=1)


def stop_after(monkeypatch: pytest.MonkeyPatch, step: int, number: int = signal.SIGTERM) -> None:
    """Let the process receive a signal while step ``step`` is recorded."""
    record = TrainingRun.record

    def record_and_signal(run: TrainingRun, result: StepResult) -> None:
        record(run, result)
        if run.state.progress.step == step:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(TrainingRun, "record", record_and_signal)


def record_batches(monkeypatch: pytest.MonkeyPatch, batches: dict[int, list[Batch]]) -> None:
    """Keep in ``batches`` what the loaders of runs give from now on, by the number of the first sample."""
    give = Loader.__next__

    def give_and_keep(loader: Loader) -> list[Batch]:
        first = loader.next_sample
        batches[first] = give(loader)
        return batches[first]

    monkeypatch.setattr(Loader, "__next__", give_and_keep)


def digest(folder: Path, step: int) -> dict[str, str]:
    """Hashes of the weights, moments and progress of a checkpoint; wall time is left out."""
    path = folder / "run" / "checkpoints" / f"step-{step:08d}"
    state = "\n".join(line for line in (path / "state.json").read_text().splitlines() if "seconds" not in line)
    hashes = {file.name: _sha256(file.read_bytes()) for file in sorted(path.glob("*.safetensors"))}
    return {**hashes, "state": state}


def metrics_without_time(folder: Path) -> list[dict[str, Any]]:
    """All rows of the run's log without what a clock decides."""
    from hornbook.track.metrics import read

    rows = read(folder / "run" / "metrics.jsonl")
    return [
        {key: value for key, value in row.items() if key not in ("seconds", "tokens_per_second", "tflops", "mfu")}
        for row in rows
    ]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
