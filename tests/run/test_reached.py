"""What a run of ``hornbook train auto`` has reached: on how many windows, when, and in which words."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_text import build_tiny

from hornbook.config import load_recipe
from hornbook.run import reached
from hornbook.run.launch import train

PREDICTED = {"bits_per_nat": 0.5, "low": 1.0, "high": 1.5}


def trained(folder: Path, *more: str, **choice: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train 10 steps of 8 windows on a corpus of few words; return the summary and the rows of the log."""
    if not (folder / "corpus").exists():
        build_tiny(folder / "corpus")
    words = ["--data.train", str(folder / "corpus"), "--data.sequence-length=8", "--model.hidden-size=32"]
    words += ["--model.num-heads=1", "--model.num-layers=1", "--training.steps=10", "--schedule.warmup-steps=2"]
    words += ["--training.global-batch-size=8", "--training.micro-batch-size=8", "--precision.compute=fp32"]
    words += ["--evaluation.max-windows=3", "--tracking.sample-every-steps=none", *more]
    run = folder / "run"
    run.mkdir(exist_ok=True)
    if choice:
        (run / "choice.json").write_text(json.dumps({"dial": "tokens 1", "options": {}, "reasons": []} | choice))
    found = train(load_recipe("decoder-demo", words), output=run, device="cpu", threads=1)
    return found, [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_end_is_measured_on_more_windows_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reached, "_LEAST", 4)  # also 6 % of the run's 80 windows
    found, rows = trained(tmp_path, name="decoder-demo", predicted=PREDICTED)
    (final,) = [row for row in rows if row["kind"] == "final"]
    validation = [row for row in rows if row["kind"] == "validation"][-1]
    assert final["step"] == validation["step"] == 10
    assert validation["tokens"] < final["tokens"] <= 4 * 8
    assert found["reached"]["value"] == pytest.approx(0.5 * final["loss"])
    assert (found["reached"]["low"], found["reached"]["high"]) == (1.0, 1.5)
    line = f"reached {0.5 * final['loss']:.3f} bits per byte"
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("reached")]
    assert told[0].startswith(line) and told[0].endswith("of the held-out text; predicted: 80 % between 1.00 and 1.50")
    again, rows = trained(tmp_path)
    assert again["reached"] == found["reached"]
    assert sum(row["kind"] == "final" for row in rows) == 1


def test_a_validation_of_as_many_windows_is_enough(tmp_path: Path) -> None:
    found, rows = trained(tmp_path, "--evaluation.max-windows=none", name="decoder-demo", predicted={})
    assert {row["kind"] for row in rows} == {"train", "validation"}
    assert found["reached"] == {
        "unit": "nats per token",
        "value": rows[-1]["loss"],
        "standard_error": None,
        "share": 1.0,
        "low": None,
        "high": None,
    }
    assert reached.told(found["reached"]) == f"reached {rows[-1]['loss']:.3f} nats per token"


def test_a_damaged_choice_stops_no_finished_run(tmp_path: Path) -> None:
    trained(tmp_path, name="decoder-demo", predicted=5)
    (tmp_path / "run" / "choice.json").write_text("{")
    found, _ = trained(tmp_path)
    assert found["step"] == 10
    assert "reached" not in found


def test_other_recipes_have_no_prediction(tmp_path: Path) -> None:
    found, rows = trained(tmp_path, name="another", predicted=PREDICTED)
    assert "reached" not in found
    assert {row["kind"] for row in rows} == {"train", "validation"}
