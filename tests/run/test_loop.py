"""A signal between two micro-batches: the unfinished step is dropped, and the resumed run is the undisturbed one."""

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
import tiny_runs
from cases import mostly_slow
from terminals import on_terminal, seen

from hornbook.engine import step as engine_step
from hornbook.engine.home import InMemory
from hornbook.errors import StoppedBySignal
from hornbook.samples.batches import Batch

FOUR = ("--training.micro-batch-size=1",)
"""Each step has four micro-batches."""


def signal_in_micro_batch(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Let SIGTERM arrive while micro-batch ``number`` of the run, from 0, is computed; return those begun."""
    begun: list[int] = []
    to_device = engine_step.to_device

    def move(batch: Batch, device: engine_step.torch.device) -> Batch:
        begun.append(len(begun))
        if begun[-1] == number:
            os.kill(os.getpid(), signal.SIGTERM)
        return to_device(batch, device)

    monkeypatch.setattr(engine_step, "to_device", move)
    return begun


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    tiny_runs.run_tiny(folder, *FOUR)
    return folder


@pytest.mark.parametrize("number", mostly_slow([14, 5, 30, 4, 6, 7, 13]))
def test_the_unfinished_step_is_dropped_and_the_resume_is_bit_equal(
    whole: Path, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the last micro-batch of a step nothing is left to drop: the step is finished."""
    step, place = divmod(number, 4)
    saved = step + (place == 3)
    with monkeypatch.context() as patch:
        begun = signal_in_micro_batch(patch, number)
        with pytest.raises(StoppedBySignal, match=f"stopped by SIGTERM; step {saved} of 8 is saved"):
            tiny_runs.run_tiny(tmp_path, *FOUR)
        assert len(begun) == number + 1, "the next micro-batch is not begun"
    assert (tmp_path / "run" / "checkpoints" / f"step-{saved:08d}").exists()
    tiny_runs.run_tiny(tmp_path, *FOUR)
    assert tiny_runs.digest(tmp_path, 8) == tiny_runs.digest(whole, 8)
    assert tiny_runs.metrics_without_time(tmp_path) == tiny_runs.metrics_without_time(whole)


def test_a_step_that_is_saved_already_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 3 is saved as every third one is; the signal comes in step 4."""
    with monkeypatch.context() as patch:
        signal_in_micro_batch(patch, 13)
        with pytest.raises(StoppedBySignal, match="step 3 of 8 is saved"):
            tiny_runs.run_tiny(tmp_path, *FOUR)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000003"]


def test_gradients_of_a_dropped_step_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[bool] = []
    drop = InMemory.drop_gradients

    def drop_and_look(home: InMemory) -> None:
        had = any(parameter.grad is not None for parameter in home.model.parameters())
        drop(home)
        dropped.append(had and all(parameter.grad is None for parameter in home.model.parameters()))

    monkeypatch.setattr(InMemory, "drop_gradients", drop_and_look)
    signal_in_micro_batch(monkeypatch, 5)
    with pytest.raises(StoppedBySignal):
        tiny_runs.run_tiny(tmp_path, *FOUR)
    assert dropped == [True, True], "of the finished step and of the dropped one"


def test_a_signal_in_the_first_step_saves_nothing_and_the_next_start_is_the_first(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        signal_in_micro_batch(patch, 1)
        with pytest.raises(StoppedBySignal, match="no step was finished, so nothing is saved; run the same command"):
            tiny_runs.run_tiny(tmp_path, *FOUR)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert not checkpoints.exists() or not list(checkpoints.iterdir())
    tiny_runs.run_tiny(tmp_path, *FOUR)
    assert tiny_runs.digest(tmp_path, 8) == tiny_runs.digest(whole, 8)


@pytest.mark.slow
def test_a_terminal_shows_each_row_a_live_display_and_the_answer_to_a_signal(tmp_path: Path) -> None:
    """A real run on a real terminal, 80 columns wide, stopped within a step of many micro-batches, and resumed."""
    sizes = "--training.steps=12 --training.global-batch-size=128 --training.micro-batch-size=1"
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(tiny_runs.RECIPE)
    words = ["-m", "hornbook", "train", str(recipe), *sizes.split(), "--threads", "1", "--output"]
    stopped: list[str] = []

    def stop(written: str, terminal: int, process: object) -> None:
        if "step 2/12" in written and not stopped:
            stopped.append(written)
            process.send_signal(signal.SIGINT)  # type: ignore[attr-defined]

    command = [sys.executable, *words, str(tmp_path / "run")]
    found = on_terminal(command, columns=80, see=stop, status=75)
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", found)
    assert re.search(r"\d/12 steps  micro-batch +\d+/128  [━─]+  .* left", drawn)
    assert re.search(r"loss [\d.]+  lr [\de.-]+  grad [\d.]+  [\d.]+k? tokens/s  MFU [\d.]+%  [\d.]+ .iB memory", drawn)
    lines = seen(found, 80)
    text = "".join(lines)
    step = int(re.findall(r"step (\d+) of 12 is saved", text)[0])
    assert [int(n) for n in re.findall(r"step (\d+)/12", text)] == list(range(1, step + 1))
    assert lines.count("hornbook: SIGINT: saving and stopping; send it again to exit at once") == 1
    assert "micro-batch" not in text and "memory" not in text, "the display is gone"
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    plain = [sys.executable, *words, str(tmp_path / "again")]
    resumed = on_terminal(plain, columns=80, TERM="dumb")
    assert "\x1b" not in resumed and resumed.count("/12  loss") == 12 - step
