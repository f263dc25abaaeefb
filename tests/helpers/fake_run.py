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
"""
EVALUATION = {
    "tasks": [
        {
            "name": "bits_per_byte",
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
    (folder / "evaluation.json").write_text(json.dumps(EVALUATION))
    with MetricsLog(folder / "metrics.jsonl") as log:
        for row in default_rows() if rows is None else rows:
            log.append(row)
    with MetricsLog(folder / "samples.jsonl") as log:
        log.append({"step": 40, "prompt": "def ", "text": "def f(x):"})
    checkpoint = folder / "checkpoints" / "step-00000040"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model-00000.safetensors").write_bytes(b"0" * 2048)
    (checkpoint / "manifest.json").write_text("{}")
    return folder


def default_rows() -> list[dict[str, object]]:
    """Forty steps with a validation every ten, the best of them at step 30."""
    rows: list[dict[str, object]] = []
    for step in range(1, 41):
        rows.append(train_row(step))
        if step % 10 == 0:
            loss = 2.5 + abs(step - 30) / 100
            rows.append({"kind": "validation", "step": step, "loss": loss, "tokens": 800, "bits_per_byte": loss / 1.5})
    return rows
