"""Tasks in the course of a training: when they run, what becomes of their rows, and what they decide."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
from cases import mostly_slow
from tiny_text import build_tiny

from hornbook import checkpoint
from hornbook.errors import DataError, StoppedBySignal, UserError
from hornbook.evaluate import Row, TaskInput, register_task, tasks
from hornbook.track.metrics import read

PASSAGES = ["the cat sat on the mat", "sat on the mat, the cat"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a corpus of tiny texts and LAMBADA's passages."""
    build_tiny(tmp_path / "corpus")
    (tmp_path / "lambada.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in PASSAGES))
    return tmp_path


def run(folder: Path, *overrides: str) -> dict[str, Any]:
    given = ("--data.train", str(folder / "corpus"), "--data.synthetic=false", "--model.vocab-size=none")
    every = ("--evaluation.every-steps=100", "--evaluation.max-windows=2")
    return tiny_runs.run_tiny(folder, *given, *every, *overrides)


def lambada(folder: Path) -> tuple[str, ...]:
    return ("--evaluation.tasks=lambada", f"--evaluation.task-data=lambada={folder / 'lambada.jsonl'}")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for row in read(folder / "run" / "metrics.jsonl") if row["kind"] == "task"]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """A task ``scripted`` whose metrics ``score`` and ``cost`` take given values, by step."""
    monkeypatch.setattr(tasks, "TASKS", dict(tasks.TASKS))
    script: dict[int, float] = {}

    @register_task("scripted", lower=["cost"], higher=["score"])
    def measure(given: TaskInput) -> list[Row]:
        value = script[given.loaded.step]
        return [Row(metric=metric, value=value, convention="as scripted") for metric in ("score", "cost")]

    return script


def test_rows_land_in_metrics_and_report(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(folder, *lambada(folder), "--evaluation.tasks-every-steps=4")
    rows = rows_of(folder)
    assert [row["step"] for row in rows if row["metric"] == "last_word_accuracy"] == [4, 8]
    assert all(row["task"] == "lambada" and "2 passages" in row["convention"] for row in rows)
    assert all(isinstance(row["value"], float) and row["compute"] == "fp32" for row in rows)
    assert "step 4  lambada  last_word_accuracy" in capfd.readouterr().err
    page = (folder / "run" / "report.html").read_text()
    assert f"on {folder}/lambada.jsonl; after step 8" in page
    assert page.count("; computed in fp32") == 6


def test_by_default_tasks_run_with_the_validation(folder: Path) -> None:
    run(folder, *lambada(folder), "--evaluation.every-steps=5")
    assert sorted({row["step"] for row in rows_of(folder)}) == [5, 8]


def test_tasks_change_nothing_of_the_training(folder: Path) -> None:
    run(folder / "with", *lambada(folder), "--evaluation.tasks-every-steps=1", "--data.train", str(folder / "corpus"))
    run(folder / "without", "--data.train", str(folder / "corpus"))
    states = [tiny_runs.digest(folder / name, 8) for name in ("with", "without")]
    assert states[0]["model-00000.safetensors"] == states[1]["model-00000.safetensors"]
    assert states[0]["optimizer-00000.safetensors"] == states[1]["optimizer-00000.safetensors"]


def test_what_a_task_says_is_what_evaluate_says(folder: Path) -> None:
    from hornbook.__main__ import main

    run(folder, *lambada(folder))
    words = ["evaluate", str(folder / "run"), "--tasks", "lambada", "--data", str(folder / "lambada.jsonl")]
    assert main([*words, "--threads", "1", "--compute", "fp32"]) == 0
    ((task),) = json.loads((folder / "run" / "evaluation.json").read_text())["tasks"]
    assert {row["metric"]: pytest.approx(row["value"]) for row in task["rows"]} == {
        row["metric"]: row["value"] for row in rows_of(folder) if row["step"] == 8
    }
    assert {row["data"] for row in rows_of(folder)} == {task["data"]["name"]} == {str(folder / "lambada.jsonl")}


@pytest.mark.parametrize("step", mostly_slow([4, *range(1, 4), *range(5, 9)]))
def test_what_a_signal_cuts_off_is_made_up_for(folder: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks, validation and samples; after the last step nothing is cut off, since nobody would make up for it."""
    every = ("--evaluation.tasks-every-steps=4", "--tracking.sample-every-steps=4", "--tracking.sample-tokens=5")
    options = (*lambada(folder), *every, "--data.train", str(folder / "corpus"))
    run(folder / "whole", *options)
    with monkeypatch.context() as patch:
        tiny_runs.stop_after(patch, step)
        if step == 8:
            assert run(folder / "stopped", *options)["step"] == 8
        else:
            with pytest.raises(StoppedBySignal):
                run(folder / "stopped", *options)
    run(folder / "stopped", *options)
    assert tiny_runs.metrics_without_time(folder / "stopped") == tiny_runs.metrics_without_time(folder / "whole")
    assert tiny_runs.digest(folder / "stopped", 8) == tiny_runs.digest(folder / "whole", 8)
    samples = [read(folder / name / "run" / "samples.jsonl") for name in ("whole", "stopped")]
    assert samples[0] == samples[1]
    assert [row["step"] for row in samples[0]] == [4, 8]


def test_a_second_signal_ends_the_last_measurements(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    validate = tiny_runs.TrainingRun.validate

    def signal_and_validate(run: tiny_runs.TrainingRun) -> None:
        if run.is_finished:
            os.kill(os.getpid(), signal.SIGTERM)
        validate(run)

    monkeypatch.setattr(tiny_runs.TrainingRun, "validate", signal_and_validate)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        tiny_runs.stop_after(patch, 8)
        run(folder)


@pytest.mark.parametrize(
    ("by", "values", "best"),
    [
        ("scripted/score", {3: 0.2, 6: 0.9, 8: 0.5}, 6),
        ("scripted/cost", {3: 0.2, 6: 0.9, 8: 0.5}, 3),
        ("scripted/score", {3: float("nan"), 6: 0.1, 8: float("nan")}, 6),
    ],
)
def test_the_best_checkpoint_is_kept(
    folder: Path, scripted: dict[int, float], by: str, values: dict[int, float], best: int
) -> None:
    scripted.update(values)
    result = run(folder, "--evaluation.tasks=scripted", f"--checkpoint.best-by={by}", "--checkpoint.keep-last=1")
    assert (result["best_by"], result["best_value"], result["best_step"]) == (by, values[best], best)
    assert checkpoint.steps_in(folder / "run" / "checkpoints") == sorted({best, 8})


def test_another_measure_forgets_the_old_best(folder: Path, scripted: dict[int, float]) -> None:
    scripted.update({3: 5.0, 6: 6.0, 8: 7.0, 9: 6.5})
    first = run(folder, "--evaluation.tasks=scripted", "--checkpoint.best-by=scripted/cost")
    assert (first["best_value"], first["best_step"]) == (5.0, 3)
    second = run(folder, "--evaluation.tasks=scripted", "--checkpoint.best-by=scripted/score", "--training.steps=9")
    assert (second["best_value"], second["best_step"]) == (6.5, 9)


def test_validation_decides_by_default(folder: Path) -> None:
    result = run(folder, *lambada(folder))
    losses = {row["step"]: row["loss"] for row in read(folder / "run" / "metrics.jsonl") if row["kind"] == "validation"}
    assert result["best_by"] == "validation"
    assert result["best_value"] == min(losses.values()) == losses[result["best_step"]]


@pytest.mark.parametrize(
    ("overrides", "kind", "message"),
    [
        (("--evaluation.tasks=lambda",), UserError, "there is no task 'lambda'.*did you mean \"lambada\""),
        (("--evaluation.tasks=lambada",), UserError, "the task needs LAMBADA's passages.*`evaluation.task_data=FILE`"),
        (
            ("--evaluation.tasks=lambada", "--evaluation.task-data=x,y"),
            UserError,
            "two entries of `evaluation.task_data`",
        ),
        (("--evaluation.tasks-every-steps=5",), UserError, "tasks_every_steps has no effect without tasks; set them"),
        (
            ("--evaluation.task-data=corpus",),
            UserError,
            "^evaluation.task_data = .*: task_data has no effect without tasks; set them",
        ),
        (("--evaluation.tasks=lambada", "--evaluation.task-data=no/such"), UserError, "cannot read .*no/such"),
        (("--evaluation.tasks=lambada", "--evaluation.task-data=tiny.toml"), DataError, "tiny.toml, line 1: .*blank"),
        (
            ("--evaluation.tasks=bits_per_byte", "--checkpoint.best-by=bits_per_byte/bits_per_bite"),
            UserError,
            'no metric .*did you mean "bits_per_byte"',
        ),
    ],
)
def test_mistakes_are_found_before_the_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], kind: type[Exception], message: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(kind, match=message) as caught:
        run(folder, *overrides)
    assert "\n" not in str(caught.value)
    assert read(folder / "run" / "metrics.jsonl") == []
    run(folder)  # the folder is not spoilt: the same run without the mistake


def test_missing_data_do_not_end_training(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    validate = tiny_runs.TrainingRun.validate

    def remove_and_validate(run: tiny_runs.TrainingRun) -> None:
        (folder / "lambada.jsonl").unlink(missing_ok=True)
        validate(run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_runs.TrainingRun, "validate", remove_and_validate)
        assert run(folder, *lambada(folder))["step"] == 8
    assert "task lambada failed, training continues: cannot read" in " ".join(capfd.readouterr().err.split())
    assert rows_of(folder) == []


def test_a_task_that_fails_changes_nothing_of_the_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout, which is off while a task runs."""
    options = (*lambada(folder), "--evaluation.tasks-every-steps=3", "--data.train", str(folder / "corpus"))
    run(folder / "whole", *options)
    record = tiny_runs.TrainingRun.record

    def record_and_remove(run: tiny_runs.TrainingRun, result: tiny_runs.StepResult) -> None:
        record(run, result)
        (folder / "lambada.jsonl").unlink(missing_ok=True)

    monkeypatch.setattr(tiny_runs.TrainingRun, "record", record_and_remove)
    run(folder / "gone", *options)
    assert rows_of(folder / "whole") and not rows_of(folder / "gone")
    whole, gone = (tiny_runs.digest(folder / name, 8) for name in ("whole", "gone"))
    assert whole["model-00000.safetensors"] == gone["model-00000.safetensors"]
