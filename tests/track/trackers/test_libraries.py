"""The built-in trackers with their real libraries, each in a run that is stopped and resumed; one without skips."""

import json
import sqlite3
from pathlib import Path

import pytest
import tiny_runs

from hornbook.errors import StoppedBySignal

EVERY = ("--tracking.histogram-every-steps=4", "--checkpoint.every-steps=4")


def stopped_and_resumed(folder: Path, tracker: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Train with a tracker, stop after step 5 and resume; return the run's folder."""
    options = (f"--tracking.trackers={tracker}", *EVERY)
    with monkeypatch.context() as patched, pytest.raises(StoppedBySignal):
        tiny_runs.stop_after(patched, 5)
        tiny_runs.run_tiny(folder, *options)
    ids = (folder / "run" / "trackers.json").read_text()
    tiny_runs.run_tiny(folder, *options)
    assert (folder / "run" / "trackers.json").read_text() == ids
    return folder / "run"


def losses_of(run: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    run = stopped_and_resumed(tmp_path, "tensorboard", monkeypatch)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"histograms": 0})
    events.Reload()
    assert {event.step: event.value for event in events.Scalars("train/loss")} == pytest.approx(losses_of(run))
    histograms = events.Histograms("weight/embedding.tokens")
    assert [event.step for event in histograms] == [4, 8]
    assert [event.histogram_value.num for event in histograms] == [70 * 32, 70 * 32]
    assert "recipe/text_summary" in events.Tags()["tensors"]


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = stopped_and_resumed(tmp_path, "wandb", monkeypatch)
    (number,) = json.loads((run / "trackers.json").read_text()).values()
    files = sorted((run / "wandb").glob(f"offline-run-*/run-{number}.wandb"))
    assert len(files) == 2  # sessions of one run, which `wandb sync` joins
    content = b"".join(file.read_bytes() for file in files)
    assert b"train/loss" in content
    assert b"gradient/embedding.tokens" in content
    assert b"optimizer.learning_rate" in content


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's use of SQLAlchemy
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    pytest.importorskip("sqlalchemy", reason="needs the extra mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = stopped_and_resumed(tmp_path, "mlflow", monkeypatch)
    (number,) = json.loads((run / "trackers.json").read_text()).values()
    with sqlite3.connect(run / "mlflow.db") as database:
        found = database.execute("select step, value from metrics where key = 'train/loss' and run_uuid = ?", [number])
        assert dict(found.fetchall()) == pytest.approx(losses_of(run))
        assert database.execute("select run_uuid, status from runs").fetchall() == [(number, "FINISHED")]
        rate = "select value from params where key = 'optimizer.learning_rate'"
        assert database.execute(rate).fetchall() == [("0.01",)]
    artifacts = run / "mlflow" / number / "artifacts"
    kept = json.loads((artifacts / "histograms" / "step-00000008.json").read_text())
    assert sum(kept["weight/embedding.tokens"]["counts"]) == 70 * 32


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, since trackio takes its folder from the environment when it is imported."""
    pytest.importorskip("trackio", reason="needs the extra trackio")
    from ranks import python

    tiny_runs.tiny_recipe(tmp_path)
    words = ("-m", "hornbook", "train", tmp_path / "tiny.toml", "--output", tmp_path / "run", "--device", "cpu", *EVERY)
    for steps in (5, 8):
        done = python(
            *words,
            "--tracking.trackers=trackio",
            f"--training.steps={steps}",
            "--allow-learning-rate-change",
            "--json",
            TRACKIO_DIR=str(tmp_path / "trackio"),
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 1
    (name,) = json.loads((tmp_path / "run" / "trackers.json").read_text()).values()
    with sqlite3.connect(tmp_path / "trackio" / "hornbook.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
    assert {row[0] for row in rows} == {name}
    tracked = {step: json.loads(blob) for _, step, blob in rows if b"train/loss" in blob}
    assert {step: row["train/loss"] for step, row in tracked.items()} == pytest.approx(losses_of(tmp_path / "run"))
