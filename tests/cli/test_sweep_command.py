"""``hornbook sweep`` with real runs of a tiny model."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from tiny_runs import RECIPE

from hornbook.__main__ import main
from hornbook.cli.sweep_command import candidates_of
from hornbook.config.recipe_files import split_overrides


def names_of(*words: str) -> list[str]:
    return [candidate.name for candidate in candidates_of(split_overrides(words)[0])]


def test_combinations_of_values_and_lists_that_are_one_value() -> None:
    words = ("--lr", "1e-3,3e-3", "--seed=1,2", "--data.train=a,b", "--data.synthetic")
    assert names_of(*words) == [f"learning-rate={rate}_seed={seed}" for rate in ("1e-3", "3e-3") for seed in (1, 2)]
    first = next(candidates_of(split_overrides(words)[0]))
    assert first.words == (
        "--optimizer.learning-rate=1e-3", "--training.seed=1", "--data.train=a,b", "--data.synthetic"
    )  # fmt: skip


def sweep(folder: Path, *words: str) -> list[str]:
    (folder / "tiny.toml").write_text(RECIPE)
    return ["sweep", "tiny.toml", "--device", "cpu", "--threads", "1", "--output", "out", "--json", *words]


def test_a_sweep_trains_compares_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = sweep(tmp_path, "--lr", "1e-4,1e-2", "--steps", "4")
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out)
    runs = ["out/learning-rate=1e-2", "out/learning-rate=1e-4"]
    assert sorted(run["run"] for run in result["runs"]) == runs and {run["step"] for run in result["runs"]} == {4}
    assert "optimizer.learning_rate" in (tmp_path / "out" / "comparison.html").read_text()
    weights = tmp_path / runs[0] / "checkpoints" / "step-00000004" / "manifest.json"
    log = tmp_path / f"{runs[0]}.log"
    before = weights.stat().st_mtime_ns, log.read_bytes()
    assert main(command) == 0
    assert (weights.stat().st_mtime_ns, log.read_bytes()) == before, "a finished run is not started again"
    out, err = capsys.readouterr()
    assert json.loads(out) == result
    assert [line for line in err.splitlines() if "finished before" in line] == [
        f"learning-rate={rate}  finished before" for rate in ("1e-4", "1e-2")
    ]
    assert main(sweep(tmp_path, "--lr", "1e-4,1e-2", "--steps", "4", "--seed", "5")) == 2
    assert "contains another run: training.seed was 1234 and is now 5" in capsys.readouterr().err


def test_a_signal_makes_the_running_one_save_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "out" / "learning-rate=1e-4" / "metrics.jsonl"

    def send_when_it_trains() -> None:
        until = time.monotonic() + 600
        while not (log.exists() and log.stat().st_size) and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send_when_it_trains)
    sender.start()
    assert main(sweep(tmp_path, "--lr", "1e-4,1e-2", "--steps", "1000000")) == 75
    sender.join()
    assert capsys.readouterr().err == "hornbook: stopped by SIGTERM; run the same command again\n"
    said = (tmp_path / "out" / "learning-rate=1e-4.log").read_text()
    assert "stopped by SIGTERM" in said.splitlines()[-1] and "is saved" in said
    assert not (tmp_path / "out" / "learning-rate=1e-2").exists()


@pytest.mark.slow
def test_halving_continues_with_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = sweep(tmp_path, "--lr", "1e-5,1e-2", "--steps", "6", "--halving", "2", "--gpus", "0,1")
    assert main(command) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["step"] for run in runs] == [6, 3]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["runs"] == runs and err.count("finished before") == 3  # two rounds


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for values in ("1e-3", "1e-3,1e-3"):
        assert main(sweep(tmp_path, "--lr", values)) == 2
        assert "nothing to sweep" in capsys.readouterr().err
    assert main(sweep(tmp_path, "--lr", "1e-3,3e-3", "--gpus", "0,,1")) == 2
    assert "--gpus 0,,1: expected indices separated by commas, such as 0,1" in capsys.readouterr().err
    assert (
        main(sweep(tmp_path, "--lr", "1e-3,3e-3", "--halving", "2", "--steps", "none", "--training.tokens", "4096"))
        == 2
    )
    assert "--halving needs a length in steps; set --steps" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_run_that_fails_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "learning-rate=1e-3").write_text("where the first run would be")
    assert main(sweep(tmp_path, "--lr", "1e-3,3e-3")) == 2
    assert "learning-rate=1e-3 failed with exit code 2" in capsys.readouterr().err


@pytest.mark.parametrize("code", [1, -9])
def test_a_run_that_may_succeed_in_another_attempt_leaves_the_sweep_another(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hornbook.cli.sweep_command._Processes.run", lambda *given: code)
    assert main(sweep(tmp_path, "--lr", "1e-3,3e-3")) == 1
    assert f"learning-rate=1e-3 failed with exit code {code}" in capsys.readouterr().err


def test_a_log_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out" / "learning-rate=1e-3.log").mkdir(parents=True)
    assert main(sweep(tmp_path, "--lr", "1e-3,3e-3")) == 2
    assert "cannot open out/learning-rate=1e-3.log: Is a directory" in capsys.readouterr().err


def test_a_file_in_place_of_the_folder_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").write_text("no folder")
    assert main(sweep(tmp_path, "--lr", "1e-3,3e-3")) == 2
    assert "out is a file: choose another --output" in capsys.readouterr().err


def test_a_value_that_no_run_takes_is_found_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(sweep(tmp_path, "--lr", "1e-3,abc")) == 2
    assert "optimizer.learning_rate = abc (command line): expected a number" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
