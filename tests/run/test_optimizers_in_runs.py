"""Every optimizer in whole runs: what its checkpoints hold, and that a resumed run is the same run."""

from pathlib import Path

import pytest
import tiny_runs
from cases import mostly_slow

from hornbook import checkpoint
from hornbook.config import choices
from hornbook.errors import CheckpointError, StoppedBySignal
from hornbook.run.initial_weights import InitFrom
from hornbook.run.launch import train

STATES = {
    "adamw": {"exp_avg", "exp_avg_sq"},
    "adam": {"exp_avg", "exp_avg_sq"},
    "lamb": {"exp_avg", "exp_avg_sq"},
    "sgd": set(),
    "momentum": {"momentum"},
    "muon": {"exp_avg", "exp_avg_sq", "momentum"},
}


def test_the_table_is_complete() -> None:
    assert set(STATES) == set(choices("optimizer"))


@pytest.mark.parametrize("name", mostly_slow(reversed(STATES)))
def test_a_resumed_run_is_the_same_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (
        f"--optimizer.name={name}",
        "--optimizer.clip-scope=per_tensor",
        "--schedule.name=polynomial",
        "--schedule.warmup-fraction=0.3",
        "--schedule.warmup-power=0.5",
        "--precision.loss-scale-by-step=0=128,4=64",
    )
    tiny_runs.run_tiny(tmp_path / "whole", *options)
    with monkeypatch.context() as patch:
        tiny_runs.stop_after(patch, 5)
        with pytest.raises(StoppedBySignal):
            tiny_runs.run_tiny(tmp_path / "parts", *options)
    tiny_runs.run_tiny(tmp_path / "parts", *options)
    assert tiny_runs.digest(tmp_path / "parts", 8) == tiny_runs.digest(tmp_path / "whole", 8)
    tensors = checkpoint.load(checkpoint.resolve(tmp_path / "whole" / "run")).tensors["optimizer"]
    assert {state.rpartition(".")[2] for state in tensors} == STATES[name]


def test_another_optimizers_state_cannot_be_kept(tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path, "--optimizer.name=sgd")
    recipe = tiny_runs.tiny_recipe(tmp_path, "--optimizer.name=momentum")
    init = InitFrom(source=str(tmp_path / "run"), keep_optimizer=True)
    message = "the optimizer keeps nothing there and momentum here, so start with `init_optimizer='fresh'`"
    with pytest.raises(CheckpointError, match=message):
        train(recipe, output=tmp_path / "other", device="cpu", threads=1, init_from=init)
