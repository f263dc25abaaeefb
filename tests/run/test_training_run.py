"""What a run keeps and shows: saves and prunes that fail, the best checkpoint, texts, weights that are not finite."""

from pathlib import Path

import pytest
import tiny_runs
from tiny_text import build_tiny

from hornbook import checkpoint
from hornbook.errors import DivergedError, StorageError
from hornbook.evaluate import Row, TaskInput, register_task, tasks
from hornbook.storage.faults import count_operations, inject
from hornbook.track.metrics import MetricsLog, read
from hornbook.track.runs import summarize

KEEP_ONE = ("--checkpoint.keep-last=1",)


def kept(folder: Path) -> list[int]:
    """Steps of all sound checkpoints."""
    return [info.step or 0 for info in checkpoint.list_checkpoints(folder / "run" / "checkpoints") if not info.problems]


def positions(folder: Path, operation: str, part: str, *overrides: str) -> list[int]:
    """Run it, and return which operations of that name, counted from 1, have ``part`` in their path."""
    with count_operations() as log:
        tiny_runs.run_tiny(folder, *overrides)
    return [
        number
        for number, done in enumerate((done for done in log if done.name == operation), 1)
        if part in str(done.path)
    ]


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Options of a run whose task ``scored`` decides: 0.5 after step 3, 0.9 after step 6, 0.1 after step 8."""
    monkeypatch.setattr(tasks, "TASKS", dict(tasks.TASKS))

    @register_task("scored", higher=["score"])
    def measure(given: TaskInput) -> list[Row]:
        return [Row(metric="score", value={3: 0.5, 6: 0.9, 8: 0.1}[given.loaded.step], convention="as written")]

    return ("--evaluation.tasks=scored", "--checkpoint.best-by=scored/score", *KEEP_ONE)


@pytest.mark.parametrize("operation", ["rename", "unlink"])
def test_a_prune_that_fails_is_no_failed_save(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], operation: str
) -> None:
    """Of the last save, too, which has to succeed."""
    pruned = positions(tmp_path / "whole", operation, "checkpoints/step-", *KEEP_ONE)
    assert kept(tmp_path / "whole") == [6, 8]
    capfd.readouterr()
    with inject(operation, pruned[-1], "eio") as came_to_it:  # type: ignore[arg-type]
        assert tiny_runs.run_tiny(tmp_path / "run-failing", *KEEP_ONE)["step"] == 8
    assert came_to_it()
    error = capfd.readouterr().err
    assert "old checkpoints could not be removed: " in error
    assert "not saved" not in error
    assert kept(tmp_path / "run-failing")[-1] == 8


def test_however_many_prunes_fail_training_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise StorageError("cannot remove")

    monkeypatch.setattr(checkpoint, "prune", fail)
    synced: list[str] = []
    monkeypatch.setattr(MetricsLog, "sync", lambda log: synced.append("sync"))
    tiny_runs.run_tiny(tmp_path, "--checkpoint.every-steps=1")
    assert kept(tmp_path) == list(range(1, 9))
    assert len(synced) == 2 * 8, "both logs, at each checkpoint"


def test_a_step_that_was_not_saved_is_not_the_best(tmp_path: Path, scored: tuple[str, ...]) -> None:
    assert tiny_runs.run_tiny(tmp_path / "whole", *scored)["best_step"] == 6
    assert kept(tmp_path / "whole") == [6, 8]
    writes = positions(tmp_path / "again", "write", "step-00000006", *scored)
    with inject("write", writes[0], "enospc"):
        result = tiny_runs.run_tiny(tmp_path / "full", *scored)
    assert (result["best_step"], result["best_value"]) == (3, 0.5)
    assert kept(tmp_path / "full") == [3, 8]


def test_a_disk_that_stays_full_ends_the_run_and_the_best_is_what_is_there(
    tmp_path: Path, scored: tuple[str, ...]
) -> None:
    writes = positions(tmp_path / "whole", "write", "step-00000006", *scored)
    with inject("write", writes[0], "enospc", lasting=True), pytest.raises(StorageError):
        tiny_runs.run_tiny(tmp_path / "full", *scored)
    assert kept(tmp_path / "full") == [3]


def test_a_disk_that_takes_no_row_of_the_log_does_not_end_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = positions(tmp_path / "whole", "write", "metrics.jsonl")
    capfd.readouterr()
    with inject("write", rows[0], "enospc"), inject("write", rows[0] + 1, "enospc"):  # of steps 1 and 2
        assert tiny_runs.run_tiny(tmp_path / "full")["step"] == 8
    assert tiny_runs.metrics_without_time(tmp_path / "full") == tiny_runs.metrics_without_time(tmp_path / "whole")
    assert capfd.readouterr().err.count("rows are kept in memory until they can be written") == 1


def test_a_run_whose_folder_is_moved_writes_nothing_to_its_old_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny_runs.run_tiny(tmp_path / "whole")
    record = tiny_runs.TrainingRun.record

    def record_and_move(run: tiny_runs.TrainingRun, result: tiny_runs.StepResult) -> None:
        record(run, result)
        if run.state.progress.step == 4:
            run.folder.path.rename(tmp_path / "moved")

    with monkeypatch.context() as patch:
        patch.setattr(tiny_runs.TrainingRun, "record", record_and_move)
        with pytest.raises(StorageError, match=r"was moved or removed while this process was using it; move it back"):
            tiny_runs.run_tiny(tmp_path / "here")
    assert "checkpoint not saved, training continues" in capfd.readouterr().err, "after step 6"
    assert not (tmp_path / "here" / "run").exists()
    (tmp_path / "moved").rename(tmp_path / "here" / "run")
    tiny_runs.run_tiny(tmp_path / "here")
    assert tiny_runs.digest(tmp_path / "here", 8) == tiny_runs.digest(tmp_path / "whole", 8)


@pytest.mark.parametrize(("failing", "ends"), [((1, 2), False), ((1, 2, 4, 5), False), ((3, 4, 5), True)])
def test_three_failed_saves_in_a_row_end_the_run_and_no_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: tuple[int, ...], ends: bool
) -> None:
    save = checkpoint.save

    def save_or_fail(folder: Path, contents: checkpoint.Contents, *others: object) -> Path:
        if contents.step in failing:
            raise StorageError("cannot write")
        return save(folder, contents, *others)

    monkeypatch.setattr(checkpoint, "save", save_or_fail)
    options = ("--checkpoint.every-steps=1", "--checkpoint.keep-last=9")
    if ends:
        with pytest.raises(StorageError, match="cannot write"):
            tiny_runs.run_tiny(tmp_path, *options)
        assert kept(tmp_path) == [1, 2]
    else:
        tiny_runs.run_tiny(tmp_path, *options)
        assert kept(tmp_path) == [step for step in range(1, 9) if step not in failing]


def test_a_save_that_fails_at_the_end_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = positions(tmp_path / "whole", "write", "step-00000008")
    with inject("write", writes[0], "enospc"), pytest.raises(StorageError, match="cannot write"):
        tiny_runs.run_tiny(tmp_path / "full")
    assert kept(tmp_path / "full") == [3, 6]


def test_samples_have_the_tokens_of_the_tokenizer_alone(tmp_path: Path) -> None:
    """Though the model may have more of them; an untrained one chooses all alike."""
    build_tiny(tmp_path / "corpus")
    data = ("--data.train", str(tmp_path / "corpus"), "--data.synthetic=false", "--model.vocab-size=5000")
    result = tiny_runs.run_tiny(tmp_path, *data, "--tracking.sample-every-steps=8", "--optimizer.learning-rate=1e-6")
    assert result["step"] == 8
    assert [row["step"] for row in read(tmp_path / "run" / "samples.jsonl")] == [8]


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tiny_runs.TrainingRun.record

    def record_and_spoil(run: tiny_runs.TrainingRun, result: tiny_runs.StepResult) -> None:
        record(run, result)
        if run.state.progress.step == 6:
            run.state.model.blocks[1].feed_forward.down.bias.detach()[2] = float("nan")

    monkeypatch.setattr(tiny_runs.TrainingRun, "record", record_and_spoil)
    with pytest.raises(DivergedError, match="weights are not finite after step 6"):
        tiny_runs.run_tiny(tmp_path)
    assert kept(tmp_path) == [3]


def test_the_last_step_of_a_length_in_tokens_is_kept_with_the_run(tmp_path: Path) -> None:
    for steps in (3, 5):  # the second goes on
        tiny_runs.run_tiny(tmp_path, "--training.steps=none", f"--training.tokens={steps * 4 * 16}")
        summary = summarize(tmp_path / "run")
        assert (summary.step, summary.total_steps) == (steps, steps)
