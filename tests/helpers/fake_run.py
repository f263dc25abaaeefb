"""A run folder as a training leaves it, for the tests that look at one."""

import json
from collections.abc import Sequence
from pathlib import Path

from hornbook.track.metrics import MetricsLog

RECIPE = """\
name = "demo"

[model]
num_layers = 4  # recipe demo.toml:4

[training]
steps = 40
seed = 1234

[data]
train = ["corpora/mine"]

[objective]
name = "causal_lm"
"""
VALIDATION = "5e1d" * 16
"""Fingerprint of the run's validation split."""
OPTIONS = {"window": None, "overlap": None, "max_sequences": None, "compute": "fp32"}
EVALUATION = {
    "tasks": [
        {
            "name": "bits_per_byte",
            "data": {"name": "corpora/mine", "split": "validation", "fingerprint": VALIDATION},
            "options": OPTIONS,
            "checkpoint": "runs/demo/checkpoints/step-00000040",
            "step": 40,
            "date": "2026-11-20T14:03:59+00:00",
            "rows": [
                {"metric": "bits_per_byte", "value": 1.79, "convention": "every held-out byte scored"},
                {"metric": "gzip -9", "value": 1.96, "convention": "the same documents"},
                {"metric": "xz -9", "value": 1.64, "convention": "the same documents"},
            ],
        }
    ]
}


def train_row(step: int, **changes: object) -> dict[str, object]:
    """A row as the loop writes it."""
    row = {
        "kind": "train",
        "step": step,
        "loss": 2 + 6 / step,
        "learning_rate": 1e-3,
        "gradient_norm": 0.9,
        "tokens": step * 1024,
        "samples": step * 4,
        "tokens_per_second": 2000.0,
        "seconds": step * 0.5,
        "skipped_steps": 0,
    }
    return {**row, **changes}


def make_run(folder: Path, *, recipe: str = RECIPE, rows: Sequence[dict[str, object]] | None = None) -> Path:
    """Recipe, environment, log, evaluation, samples and a checkpoint in ``folder``."""
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(recipe)
    (folder / "environment.json").write_text(
        json.dumps({"sessions": [{"from_step": 0, "cpu": "Test CPU", "threads": 2, "command": "x"}]})
    )
    (folder / "run.json").write_text(json.dumps({"data": {"train": "7e57" * 16, "validation": VALIDATION}}))
    (folder / "evaluation.json").write_text(json.dumps(EVALUATION))
    rows = default_rows() if rows is None else rows
    with MetricsLog(folder / "metrics.jsonl") as log:
        for row in rows:
            log.append(row)
    with MetricsLog(folder / "samples.jsonl") as log:
        log.append({"step": 40, "prompt": "def ", "text": "def f(x):"})
    if step := max((row["step"] for row in rows if isinstance(row["step"], int)), default=0):
        make_checkpoint(folder, step)
    return folder


def make_checkpoint(folder: Path, step: int, **documents: object) -> Path:
    """A folder that looks like a checkpoint, with JSON documents such as ``state={"step": 40}``."""
    checkpoint = folder / "checkpoints" / f"step-{step:08d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model-00000.safetensors").write_bytes(b"0" * 2048)
    (checkpoint / "manifest.json").write_text("{}")
    for name, document in documents.items():
        (checkpoint / f"{name}.json").write_text(json.dumps(document))
    return checkpoint


def default_rows() -> list[dict[str, object]]:
    """Forty steps with a validation every ten, the best of them at step 30."""
    rows: list[dict[str, object]] = []
    for step in range(1, 41):
        rows.append(train_row(step))
        if step % 10 == 0:
            loss = 2.5 + abs(step - 30) / 100
            rows.append({"kind": "validation", "step": step, "loss": loss, "tokens": 800, "bits_per_byte": loss / 1.5})
    return rows
