"""A run that corrects its own length ends in time, and is the run of the corrected recipe."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from cases import mostly_slow
from tiny_text import build_tiny

from hornbook.checkpoint import steps_in
from hornbook.config import load_recipe
from hornbook.engine.state import TrainState
from hornbook.engine.step import StepResult, train_step
from hornbook.errors import StoppedBySignal
from hornbook.run.launch import train

SECONDS = 24.0


class Clock:
    """A clock by which a step takes 0.1 s, and from step 40 on ``later`` seconds; it stops the run in a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, later: float, stop_at: int | None = None) -> None:
        self.now, self.later, self.stop_at = 1e9, later, stop_at
        for module in ("fit_length", "training_run"):
            monkeypatch.setattr(f"hornbook.run.{module}.time", self)
        monkeypatch.setattr("hornbook.run.loop.train_step", self.step)

    def time(self) -> float:
        return self.now

    perf_counter = time

    def step(self, state: TrainState, *rest: Any) -> StepResult:
        self.now += 0.1 if state.progress.step < 40 else self.later
        if state.progress.step == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(state, *rest)


def recipe_of(corpus: Path, *more: str):
    words = ["--data.train", str(corpus), "--data.sequence-length=8", "--model.hidden-size=32", "--model.num-heads=1"]
    words += ["--model.num-layers=1", "--training.steps=200", "--schedule.warmup-steps=10", "--precision.compute=fp32"]
    words += ["--evaluation.every-steps=20", "--evaluation.max-windows=2", "--checkpoint.every-steps=30"]
    return load_recipe("decoder-demo", [*words, "--tracking.sample-every-steps=none", *more])


def start(folder: Path) -> None:
    folder.mkdir()
    limit = {"name": "decoder-demo", "begun": 1e9, "seconds": SECONDS}
    (folder / "choice.json").write_text(json.dumps({"dial": "time 1m", "options": {}, "reasons": []} | limit))


def weights(folder: Path) -> bytes:
    (newest,) = steps_in(folder / "checkpoints")[-1:]
    return b"".join(path.read_bytes() for path in sorted((folder / "checkpoints").glob(f"*{newest}/*.safetensors")))


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    build_tiny(tmp_path / "corpus")
    monkeypatch.setattr("hornbook.run.fit_length.MOST_EPOCHS", 10**6)
    return tmp_path / "corpus"


@pytest.mark.parametrize(("later", "fewest", "most"), mostly_slow([(0.4, 75, 90), (0.08, 220, 245)]))
def test_it_ends_in_time_whatever_the_machine_does(
    later: float, fewest: int, most: int, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, later)
    start(tmp_path / "run")
    found = train(recipe_of(corpus), output=tmp_path / "run", device="cpu", threads=1)
    assert clock.now - 1e9 == pytest.approx(SECONDS - 4, abs=1)  # 4 s are left for the report
    assert fewest < found["step"] < most
    rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    rates = [row["learning_rate"] for row in rows if row["kind"] == "train"]
    assert rates[-1] < 0.05 * max(rates)  # the decay is complete


def test_the_corrected_run_is_that_of_its_recipe_and_of_a_resume(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, 0.4, stop_at=65)  # in the decay
    start(tmp_path / "run")
    with pytest.raises(StoppedBySignal):
        train(recipe_of(corpus), output=tmp_path / "run", device="cpu", threads=1)
    clock.now, clock.stop_at = clock.now + 1e6, None  # a pause does not count
    resumed = train(load_recipe(str(tmp_path / "run")), output=None, device="cpu", threads=1)
    recipe = json.loads((tmp_path / "run" / "run.json").read_text())["recipe"]
    assert recipe["training"]["steps"] == resumed["step"]
    assert len(recipe["schedule"]["lengths"]) >= 2
    assert recipe["schedule"]["lengths"][0] == "0=200"
    assert 0.8 * SECONDS < clock.now - 1e6 - 1e9 < SECONDS
    recipe_file = tmp_path / "corrected.toml"
    recipe_file.write_bytes((tmp_path / "run" / "recipe.toml").read_bytes())
    train(load_recipe(str(recipe_file)), output=tmp_path / "again", device="cpu", threads=1)
    assert weights(tmp_path / "run") == weights(tmp_path / "again") != b""


def test_the_choice_of_another_recipe_is_no_limit(corpus: Path, tmp_path: Path) -> None:
    start(tmp_path / "run")
    recipe = recipe_of(corpus, "--name=other", "--training.steps=12")
    assert train(recipe, output=tmp_path / "run", device="cpu", threads=1)["step"] == 12
