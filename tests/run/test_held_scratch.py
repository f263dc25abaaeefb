"""Scratch in runs: without names, as large as was said, and gone however a run ends."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import tiny_runs
import torch
from ranks import environment, train_on_ranks

from hornbook.errors import StorageError
from hornbook.parallel.world import World
from hornbook.run.examine import examine
from hornbook.run.preflight import bytes_of_scratch
from hornbook.run.training_run import TrainingRun

PHASED = "--memory.execution=phased"


def scratch_of(process):
    """The sizes of the scratch files that a process has open; none once it has ended."""
    found = {}
    with suppress(FileNotFoundError, ProcessLookupError):
        for number in os.listdir(f"/proc/{process}/fd"):  # noqa: PTH208 - a file may be closed meanwhile
            with suppress(FileNotFoundError):
                path = f"/proc/{process}/fd/{number}"
                target = os.readlink(path)  # noqa: PTH115
                if target.endswith(" (deleted)") and ("hornbook-scratch-" in target or "/#" in target):
                    found[target] = os.stat(path).st_size  # noqa: PTH116
    return found


def test_a_model_without_space_for_its_scratch_files_is_a_one_line_error(tmp_path):
    huge = ("--model.num-layers=40", "--model.hidden-size=12288", "--model.num-heads=96", PHASED)
    with pytest.raises(StorageError, match=r"^phased execution needs [0-9.]+ TiB of scratch in .*/run, which has "):
        tiny_runs.run_tiny(tmp_path, *huge)
    assert not (tmp_path / "run").exists()
    resolved = tiny_runs.tiny_recipe(tmp_path, *huge)
    found = examine(resolved.recipe, tmp_path / "run", torch.device("cpu"))
    assert [finding.message.partition(" needs ")[0] for finding in found if finding.about == "scratch"] == [
        "phased execution"
    ]


def test_a_start_leaves_the_folders_and_links_of_the_user_alone(tmp_path):
    """Whatever their names are; the run's folder and that of scratch may be shared with others."""
    run, shared, home = (tmp_path / name for name in ("run", "shared", "home"))
    home.mkdir()
    (home / ".bashrc").write_text("mine")
    for base in (run, shared):
        for name in ("scratch-2024", "scratch-1", "scratch-00001"):
            (base / name / "thesis").mkdir(parents=True)
            (base / name / "thesis" / "chapter1.txt").write_text("mine")
        (base / "scratch-00000").symlink_to(home)
    before = sorted(path for base in (run, shared, home) for path in base.rglob("*"))
    tiny_runs.run_tiny(tmp_path)
    tiny_runs.run_tiny(tmp_path, PHASED, "--training.steps=9")
    tiny_runs.run_tiny(tmp_path, PHASED, "--training.steps=10", f"--memory.scratch={shared}")
    assert [path for path in before if not os.path.lexists(path)] == []
    assert sorted(shared.rglob("*")) == [path for path in before if path.is_relative_to(shared)]
    assert list(home.iterdir()) == [home / ".bashrc"] and (home / ".bashrc").read_text() == "mine"


def test_scratch_is_as_large_as_was_said(tmp_path, monkeypatch):
    """But for the padding of the token table, and for alignment."""
    sizes = []
    resolved = tiny_runs.tiny_recipe(tmp_path, PHASED)
    record = TrainingRun.record
    before = scratch_of(os.getpid())  # of other tests, for the garbage collector

    def record_and_look(run, result):
        record(run, result)
        sizes.append(sum(size for name, size in scratch_of(os.getpid()).items() if name not in before))

    monkeypatch.setattr(TrainingRun, "record", record_and_look)
    tiny_runs.run_tiny(tmp_path, PHASED)
    padding = (128 - 70) * 32 * 4 * 4
    assert sizes[-1] == pytest.approx(bytes_of_scratch(resolved.recipe, World()) + padding, rel=0.01)


@pytest.mark.slow
def test_ranks_share_a_folder_of_scratch(tmp_path):
    """Another user's run may use it, too; nothing is created in it or removed from it."""
    shared = tmp_path / "shared"
    for other in ("scratch-00000", "scratch-00001"):
        (shared / other).mkdir(parents=True)
        (shared / other / "mine").write_text("stays")
    before = sorted(shared.rglob("*"))
    tiny_runs.tiny_recipe(tmp_path)
    options = (PHASED, f"--memory.scratch={shared}", "--training.steps=2")
    train_on_ranks(2, {tmp_path / "run": (tmp_path / "tiny.toml", *options)})
    assert sorted(shared.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("then", ["phased", "resident"])
def test_nothing_remains_of_the_scratch_of_a_run_that_is_killed_at_any_instant(then, tmp_path):
    """And the run ends in the bits of one that was not killed."""
    tiny_runs.run_tiny(tmp_path / "whole")
    shared = tmp_path / "shared"
    command = [sys.executable, "-m", "hornbook", "train", str(tmp_path / "tiny.toml"), PHASED]
    command += ["--output", str(tmp_path / "run"), "--device", "cpu", "--threads", "1", f"--memory.scratch={shared}"]
    tiny_runs.tiny_recipe(tmp_path)
    had_scratch = 0
    for _ in range(6):
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
            deadline = time.monotonic() + 600
            while child.poll() is None and not scratch_of(child.pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(random.uniform(0.0, 0.3))
            had_scratch += bool(scratch_of(child.pid))
            os.kill(child.pid, signal.SIGKILL)
        assert list(shared.iterdir()) == []
    assert had_scratch
    tiny_runs.run_tiny(tmp_path, f"--memory.execution={then}")
    assert tiny_runs.digest(tmp_path, 8) == tiny_runs.digest(tmp_path / "whole", 8)
