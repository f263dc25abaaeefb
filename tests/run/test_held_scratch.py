"""Scratch in runs: refused in one line, gone at the end, and after a kill gone with the next start."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
import tiny_runs
import torch
from ranks import environment

from hornbook.errors import StorageError, UserError
from hornbook.parallel.world import World
from hornbook.run.examine import examine
from hornbook.run.held_scratch import bytes_of_scratch
from hornbook.run.training_run import TrainingRun
from hornbook.storage.scratch import scratch_folder

PHASED = "--memory.execution=phased"


def test_a_model_without_room_for_its_scratch_is_refused_in_one_line(tmp_path):
    huge = ("--model.num-layers=100", "--model.hidden-size=8192", PHASED)
    with pytest.raises(StorageError, match=r"^phased execution needs [0-9.]+ TiB of scratch in .*/run, which has "):
        tiny_runs.run_tiny(tmp_path, *huge)
    assert not (tmp_path / "run").exists()
    resolved = tiny_runs.tiny_recipe(tmp_path, *huge)
    found = examine(resolved.recipe, tmp_path / "run", torch.device("cpu"))
    assert [finding.message.partition(" needs ")[0] for finding in found if finding.about == "scratch"] == [
        "phased execution"
    ]


def test_scratch_that_another_run_holds_is_refused_in_one_line(tmp_path):
    holder = "import sys, time; from hornbook.storage.scratch import *; from pathlib import Path\n"
    holder += "with scratch_folder(Path(sys.argv[1]), 1): print('held', flush=True); time.sleep(600)"
    with ExitStack() as stack:
        held = tmp_path / "shared" / "scratch-00000"
        child = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", holder, str(held)], stdout=subprocess.PIPE, env=environment())
        )
        stack.callback(child.kill)
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match=rf"scratch-00000 is in use by another process \({child.pid}\); wait"):
            tiny_runs.run_tiny(tmp_path, PHASED, f"--memory.scratch={tmp_path / 'shared'}")
        assert not (tmp_path / "run").exists()
    tiny_runs.run_tiny(tmp_path, PHASED, f"--memory.scratch={tmp_path / 'shared'}")
    assert not held.exists()


def test_scratch_is_as_large_as_was_said(tmp_path, monkeypatch):
    """But for the padding of the token table, and for alignment."""
    sizes = []
    resolved = tiny_runs.tiny_recipe(tmp_path, PHASED)
    record = TrainingRun.record

    def record_and_look(run, result):
        record(run, result)
        files = (tmp_path / "run" / "scratch-00000").glob("[rs]*")
        sizes.append(sum(file.stat().st_size for file in files))

    monkeypatch.setattr(TrainingRun, "record", record_and_look)
    tiny_runs.run_tiny(tmp_path, PHASED)
    padding = (128 - 70) * 32 * 4 * 4
    assert sizes[-1] == pytest.approx(bytes_of_scratch(resolved.recipe, World()) + padding, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("then", ["phased", "resident"])
def test_a_run_that_is_killed_at_any_instant_leaves_scratch_alone(then, tmp_path):
    """Which the next start removes, and the run ends in the bits of one that was not killed."""
    tiny_runs.run_tiny(tmp_path / "whole")
    command = [sys.executable, "-m", "hornbook", "train", str(tmp_path / "tiny.toml"), PHASED]
    command += ["--output", str(tmp_path / "run"), "--device", "cpu", "--threads", "1"]
    tiny_runs.tiny_recipe(tmp_path)
    lefts = 0
    for _ in range(6):
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
            deadline = time.monotonic() + 600
            state = tmp_path / "run" / "scratch-00000" / "state"
            while child.poll() is None and not state.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(random.uniform(0.0, 0.3))
            os.kill(child.pid, signal.SIGKILL)
        lefts += state.exists()
    assert lefts
    tiny_runs.run_tiny(tmp_path, f"--memory.execution={then}")
    assert not list((tmp_path / "run").glob("scratch-*"))
    assert tiny_runs.digest(tmp_path, 8) == tiny_runs.digest(tmp_path / "whole", 8)


def test_a_start_removes_what_others_left_but_holds_to_its_own(tmp_path):
    left = tmp_path / "run" / "scratch-00007"
    left.mkdir(parents=True)
    (left / "state").write_bytes(b"left")
    (left / "lock").touch()
    with scratch_folder(tmp_path / "run" / "scratch-00001", 1):
        tiny_runs.run_tiny(tmp_path)
        assert not left.exists()
        assert (tmp_path / "run" / "scratch-00001").exists()
