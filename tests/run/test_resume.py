"""A resumed run is the same run: bit-equal weights, moments, progress and log, wherever and however it stopped."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import tiny_runs
from cases import mostly_slow
from tiny_encoder_runs import FAMILIES, LAYOUTS, build_sentences, encoder, on_corpus
from tiny_text import build_tiny

from hornbook import checkpoint
from hornbook.errors import CheckpointError, StoppedBySignal, StorageError, UserError
from hornbook.storage.faults import CRASH_STATUS, count_operations, inject

VARIANTS = {
    "fp32": (),
    "bf16": ("--precision.compute=bf16",),
    "native fp32": ("--precision.kernels=native",),
    "native bf16": ("--precision.compute=bf16", "--precision.kernels=native"),
    "no accumulation": ("--training.micro-batch-size=4",),
    "attention dropout and document mask": ("--model.attention-dropout=0.2", "--data.document-mask"),
}


ENCODERS = {f"{family}, {layout}": (family, layout) for family, layout in zip(FAMILIES, LAYOUTS, strict=True)}


FAST = ("native bf16", "attention dropout and document mask", "groupbert, unpadded")
WHOLE = mostly_slow(sorted([*VARIANTS, *ENCODERS], key=lambda name: name not in FAST), len(FAST))


@pytest.fixture(scope="module", params=WHOLE, ids=str)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    folder, name = tmp_path_factory.mktemp("whole"), request.param
    if name in VARIANTS:
        overrides = VARIANTS[name]
    else:
        family, layout = ENCODERS[name]
        overrides = (*encoder(family), *on_corpus(build_sentences(folder / "corpus")), f"--data.layout={layout}")
    tiny_runs.run_tiny(folder, *overrides)
    return folder, overrides


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 8 steps, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    tiny_runs.run_tiny(folder)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the folder of a run of 8 steps."""
    return shutil.copytree(finished, tmp_path / "copied")


STOPS = (
    {2: signal.SIGTERM, 3: signal.SIGINT, 6: signal.SIGUSR1},
    {1: signal.SIGINT, 4: signal.SIGTERM, 5: signal.SIGUSR1, 7: signal.SIGTERM},
)
"""Together every step, after one step or several since the start."""


@pytest.mark.parametrize(
    "stops", [STOPS[0], pytest.param(STOPS[1], marks=pytest.mark.slow)], ids=lambda stops: "-".join(map(str, stops))
)
def test_resumes_in_a_row_are_bit_equal(
    whole: tuple[Path, tuple[str, ...]],
    stops: dict[int, signal.Signals],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, overrides = whole
    for step, number in stops.items():
        with monkeypatch.context() as patch:
            tiny_runs.stop_after(patch, step, number)
            with pytest.raises(StoppedBySignal, match=f"{number.name}; step {step} of 8 is saved"):
                tiny_runs.run_tiny(tmp_path, *overrides)
    tiny_runs.run_tiny(tmp_path, *overrides)
    assert tiny_runs.digest(tmp_path, 8) == tiny_runs.digest(expected, 8)
    assert tiny_runs.metrics_without_time(tmp_path) == tiny_runs.metrics_without_time(expected)


@pytest.mark.parametrize("step", [1, 4, 7, *(pytest.param(step, marks=pytest.mark.slow) for step in (2, 3, 5, 6))])
def test_a_resume_after_any_step_is_bit_equal(
    finished: Path, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        tiny_runs.stop_after(patch, step)
        with pytest.raises(StoppedBySignal, match=f"SIGTERM; step {step} of 8 is saved"):
            tiny_runs.run_tiny(tmp_path)
    tiny_runs.run_tiny(tmp_path)
    assert tiny_runs.digest(tmp_path, 8) == tiny_runs.digest(finished, 8)
    assert tiny_runs.metrics_without_time(tmp_path) == tiny_runs.metrics_without_time(finished)


def test_a_finished_run_says_so_and_changes_nothing(copied: Path) -> None:
    before = tiny_runs.digest(copied, 8)
    assert tiny_runs.run_tiny(copied)["step"] == 8
    assert tiny_runs.digest(copied, 8) == before


def test_a_longer_run_resumes(tmp_path: Path) -> None:
    tiny_runs.run_tiny(tmp_path, "--schedule.name=constant")
    longer = tiny_runs.run_tiny(tmp_path, "--schedule.name=constant", "--training.steps=10")
    tiny_runs.run_tiny(tmp_path / "whole", "--schedule.name=constant", "--training.steps=10")
    assert longer["step"] == 10
    assert tiny_runs.digest(tmp_path, 10) == tiny_runs.digest(tmp_path / "whole", 10)


def _child(folder: Path, operation: int, kind: str) -> int:
    """Train in a child process that dies at a disk operation; return its exit status."""
    child = os.fork()
    if child == 0:
        try:
            with inject("any", operation, kind):
                tiny_runs.run_tiny(folder)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.slow  # .ci/run tries as much in the short form of the reliability suite: crash-points and deaths
def test_a_run_that_dies_at_any_disk_operation_loses_no_commit_and_ends_the_same(tmp_path: Path) -> None:
    with count_operations() as operations:
        tiny_runs.run_tiny(tmp_path / "whole")
    expected = tiny_runs.digest(tmp_path / "whole", 8)
    numbers = random.Random(7).sample(range(1, len(operations)), 5)
    for number in sorted(numbers):
        folder = tmp_path / f"crash-{number}"
        assert _child(folder, number, random.Random(number).choice(["crash-before", "crash-after"])) == CRASH_STATUS
        tiny_runs.run_tiny(folder)
        assert tiny_runs.digest(folder, 8) == expected, f"after a crash at {operations[number - 1]}"


@pytest.mark.slow
def test_kill_9_at_random_instants_loses_no_commit_and_ends_the_same(finished: Path, tmp_path: Path) -> None:
    expected = tiny_runs.digest(finished, 8)
    folder, delays = tmp_path / "killed", random.Random(3)
    seen = 0
    for _ in range(8):
        child = os.fork()
        if child == 0:
            try:
                tiny_runs.run_tiny(folder)
            finally:
                os._exit(0)
        time.sleep(delays.uniform(0.05, 0.4))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        newest = checkpoint.newest_sound(folder / "run" / "checkpoints", pytest.fail)
        step = int(newest.name.removeprefix("step-")) if newest else 0
        assert step >= seen, "a committed checkpoint was lost"
        seen = step
    tiny_runs.run_tiny(folder)
    assert tiny_runs.digest(folder, 8) == expected


@pytest.mark.parametrize(
    "name", ["model-00000.safetensors", "optimizer-00000.safetensors", "state.json", "manifest.json"]
)
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(
    copied: Path, capfd: pytest.CaptureFixture[str], name: str, damage: str
) -> None:
    expected = tiny_runs.digest(copied, 8)
    _damage(copied / "run" / "checkpoints" / "step-00000008" / name, damage)
    capfd.readouterr()
    tiny_runs.run_tiny(copied)
    error = capfd.readouterr().err
    assert "warning" in error
    assert "step-00000008" in error
    assert tiny_runs.digest(copied, 8) == expected


def _damage(path: Path, damage: str) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    match damage:
        case "truncate":
            path.write_bytes(data[: len(data) // 2])
        case "flip":
            path.write_bytes(data)
        case "delete":
            path.unlink()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("--model.num-layers=3", "model.num_layers was 2 and is now 3"),
        ("--training.seed=5", "training.seed was 1234 and is now 5"),
        ("--training.global-batch-size=8", "training.global_batch_size was 4 and is now 8"),
        ("--optimizer.learning-rate=1e-3", "optimizer.learning_rate was 0.01 and is now 0.001"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(copied: Path, override: str, message: str) -> None:
    before = tiny_runs.digest(copied, 8)
    with pytest.raises(UserError, match=message):
        tiny_runs.run_tiny(copied, override)
    assert tiny_runs.digest(copied, 8) == before


def test_layout_and_tracking_may_change(copied: Path) -> None:
    tiny_runs.run_tiny(copied, "--training.micro-batch-size=1", "--tracking.log-every-steps=4", "--training.steps=9")
    assert (copied / "run" / "checkpoints" / "step-00000009").is_dir()


def test_checkpoints_without_identity_are_refused(copied: Path) -> None:
    (copied / "run" / "run.json").unlink()
    with pytest.raises(UserError, match=r"without its run\.json"):
        tiny_runs.run_tiny(copied)


def test_a_run_is_not_written_into_a_corpus(tmp_path: Path) -> None:
    build_tiny(tmp_path / "run")
    before = sorted((tmp_path / "run").rglob("*"))
    with pytest.raises(UserError, match=r"run is a corpus: choose another `output` for a run"):
        tiny_runs.run_tiny(tmp_path)
    assert sorted((tmp_path / "run").rglob("*")) == before
    (tmp_path / "run" / "build.json").unlink()
    with pytest.raises(UserError, match=r"run is a corpus: choose another `output` for a run"):
        tiny_runs.run_tiny(tmp_path)


def test_a_disk_that_fills_up_leaves_the_run_alive(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with count_operations() as operations:
        tiny_runs.run_tiny(tmp_path / "whole")
    writes = [operation for operation in operations if operation.name == "write"]
    first = next(index for index, write in enumerate(writes, 1) if "step-00000003" in str(write.path))
    with inject("write", first + 1, "enospc"):
        tiny_runs.run_tiny(tmp_path)
    assert "checkpoint not saved, training continues" in capfd.readouterr().err
    assert tiny_runs.digest(tmp_path, 8) == tiny_runs.digest(tmp_path / "whole", 8)


def test_when_every_checkpoint_is_damaged_nothing_is_overwritten(copied: Path) -> None:
    checkpoints, metrics = copied / "run" / "checkpoints", copied / "run" / "metrics.jsonl"
    for path in checkpoints.glob("*/model-00000.safetensors"):
        _damage(path, "flip")
    before = metrics.read_bytes()
    with pytest.raises(CheckpointError, match=r"has 2 checkpoints, but none is intact: restore one to resume"):
        tiny_runs.run_tiny(copied)
    assert metrics.read_bytes() == before
    assert len(list(checkpoints.iterdir())) == 2
    shutil.rmtree(checkpoints)
    assert tiny_runs.run_tiny(copied)["step"] == 8


def test_a_kill_after_a_signal_at_a_due_step_leaves_each_measurement_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal leaves the validation and the text of step 6 to the resume, which is killed before it saves again."""
    build_tiny(tmp_path / "corpus")
    data = ("--data.train", str(tmp_path / "corpus"), "--data.synthetic=false", "--model.vocab-size=none")
    overrides = (*data, "--tracking.sample-every-steps=3")
    tiny_runs.run_tiny(tmp_path / "whole", *overrides)
    with monkeypatch.context() as patch:
        tiny_runs.stop_after(patch, 6)
        with pytest.raises(StoppedBySignal):
            tiny_runs.run_tiny(tmp_path, *overrides)
    with monkeypatch.context() as patch:
        patch.setattr("hornbook.run.loop.train_step", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tiny_runs.run_tiny(tmp_path, *overrides)
    tiny_runs.run_tiny(tmp_path, *overrides)
    assert tiny_runs.metrics_without_time(tmp_path) == tiny_runs.metrics_without_time(tmp_path / "whole")
    samples = (folder / "run" / "samples.jsonl" for folder in (tmp_path, tmp_path / "whole"))
    assert len({path.read_bytes() for path in samples}) == 1


def test_what_a_kill_in_the_last_prune_left_goes_with_the_next_start(tmp_path: Path) -> None:
    with count_operations() as operations:
        tiny_runs.run_tiny(tmp_path / "whole")
    expected = sorted(path.name for path in (tmp_path / "whole/run/checkpoints").iterdir())
    prune = [number for number, done in enumerate(operations, 1) if "step-00000003" in str(done.path)][-8::4]
    for number in prune:
        folder = tmp_path / f"killed-{number}"
        assert _child(folder, number, "crash-before") == CRASH_STATUS
        tiny_runs.run_tiny(folder)
        assert sorted(path.name for path in (folder / "run/checkpoints").iterdir()) == expected


def test_weights_of_another_shape_are_named(copied: Path) -> None:
    other = copied / "other"
    tiny_runs.run_tiny(other, "--model.hidden-size=64")
    shutil.rmtree(copied / "run" / "checkpoints")
    shutil.copytree(other / "run" / "checkpoints", copied / "run" / "checkpoints")
    with pytest.raises(CheckpointError, match=r"attention\.out\.bias is \[64\], expected \[32\]"):
        tiny_runs.run_tiny(copied)


def test_a_disk_without_space_for_two_checkpoints_is_an_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hornbook.run.preflight.free_bytes", lambda folder: 1000)
    with pytest.raises(StorageError, match=r"will need .* for up to .* checkpoints of .*, but 1000 B is free: free"):
        tiny_runs.run_tiny(tmp_path)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_stored_dtypes_are_verified(copied):
    """A recipe that says bf16 does not silently round the fp32 weights of the checkpoint."""
    identity = copied / "run" / "run.json"
    identity.write_text(identity.read_text().replace('"weights": "fp32"', '"weights": "bf16"'))
    with pytest.raises(CheckpointError, match=r"embedding.tokens is stored as F32, .* \[precision\] requires BF16"):
        tiny_runs.run_tiny(copied, "--precision.weights=bf16")


def test_the_storage_dtypes_of_a_run_stay(copied):
    with pytest.raises(UserError, match=r"precision\.weights was 'fp32' and is now 'bf16'"):
        tiny_runs.run_tiny(copied, "--precision.weights=bf16")


def test_what_is_kept_in_memory_may_change_on_the_way(tmp_path, monkeypatch):
    dropouts = ("--model.attention-dropout=0.1",)
    tiny_runs.run_tiny(tmp_path / "whole", *dropouts)
    with monkeypatch.context() as patch:
        tiny_runs.stop_after(patch, 4)
        with pytest.raises(StoppedBySignal):
            tiny_runs.run_tiny(tmp_path / "cut", *dropouts, "--memory.recompute=attention")
    tiny_runs.run_tiny(tmp_path / "cut", *dropouts, "--memory.recompute=all", "--memory.recompute-budget=0.01")
    assert tiny_runs.digest(tmp_path / "cut", 8) == tiny_runs.digest(tmp_path / "whole", 8)
