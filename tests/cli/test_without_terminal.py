"""A run goes on where nobody listens: standard streams that are closed or full, and a second Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_runs import tiny_recipe


def start(folder: Path, redirections: str, *words: str) -> "subprocess.Popen[str]":
    """``hornbook train`` on a tiny recipe in a shell, which sets up its standard streams."""
    tiny_recipe(folder)
    command = f"exec {sys.executable} -m hornbook train tiny.toml --output run --threads 1 {' '.join(words)}"
    return subprocess.Popen(["sh", "-c", f"{command} {redirections}"], cwd=folder, text=True, stderr=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.parametrize("redirections", ["< /dev/null > /dev/full", "<&- >&- 2>&-", "2> /dev/full"])
def test_a_run_ends_well_whose_streams_are_closed_or_full(tmp_path, redirections):
    process = start(tmp_path, redirections)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert (tmp_path / "run" / "checkpoints" / "step-00000008").is_dir()


@pytest.mark.slow
def test_a_result_that_cannot_be_written_is_one_line_and_the_run_is_saved(tmp_path):
    process = start(tmp_path, "> /dev/full", "--json")
    _, said = process.communicate(timeout=600)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("hornbook: error: standard output cannot be written: ")
    assert (tmp_path / "run" / "checkpoints" / "step-00000008").is_dir()


@pytest.mark.slow
def test_two_fast_ctrl_c_leave_no_traceback(tmp_path):
    process = start(tmp_path, "", "--training.steps=100000", "--checkpoint.every-steps=100000")
    for _ in range(6000):
        if (tmp_path / "run" / "metrics.jsonl").exists() and (tmp_path / "run" / "metrics.jsonl").stat().st_size:
            break
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode in (75, 130), said
    assert "Traceback" not in said
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(row)["step"] for row in rows)
