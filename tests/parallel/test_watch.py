"""A rank that is lost is noticed and named by one line, the others leave, and a restart finishes the run."""

import hashlib
import subprocess
import sys
import time

import pytest
from ranks import TORCHRUN, environment

from hornbook.track.metrics import read

RECIPE = """
[model]
num_layers = 1
hidden_size = 16
num_heads = 2
vocab_size = 70
max_positions = 8
residual_dropout = 0.1
[data]
synthetic = true
[training]
steps = 8
global_batch_size = 4
micro_batch_size = 1
[checkpoint]
every_steps = 3
[tracking]
log_every_steps = 1
"""
LAUNCHERS = {
    "torchrun": lambda ranks, restarts: [*TORCHRUN, str(ranks), "--max-restarts", str(restarts), "-m", "hornbook"],
    "processes": lambda ranks, restarts: ["-m", "hornbook"],
}


def run_losing(folder, launcher, how, *, restarts=0, ranks=2):
    """Train on ranks, one of which is lost after step 5 of the first start; return exit code, errors and seconds."""
    folder.mkdir(exist_ok=True)
    (folder / "tiny.toml").write_text(RECIPE)
    (folder / "sitecustomize.py").write_text(
        f"import os\nif 'RANK' in os.environ or {launcher == 'processes'}:\n"
        "    import lost_rank\n    lost_rank.patch(os.environ['HORNBOOK_TEST_LOSE'])\n"
    )
    words = ["train", str(folder / "tiny.toml"), "--output", str(folder / "run"), "--device", "cpu", "--threads", "1"]
    if launcher == "processes":
        words += ["--processes", str(ranks), "--max-restarts", str(restarts)]
    command = [sys.executable, *LAUNCHERS[launcher](ranks, restarts), *words]
    start = time.monotonic()
    done = subprocess.run(
        command,
        env=environment(folder, HORNBOOK_TEST_LOSE=how),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stderr, time.monotonic() - start


def ours(stderr):
    return [line.removeprefix("hornbook: error: ") for line in stderr.splitlines() if "hornbook: error" in line]


def weights(folder):
    path = folder / "run" / "checkpoints" / "step-00000008"
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.glob("*.safetensors"))]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_restart_ends_in_the_state_of_an_undisturbed_run(tmp_path, launcher):
    assert run_losing(tmp_path / "whole", launcher, "never")[0] == 0
    for how in ("kill", "stop"):
        code, stderr, _ = run_losing(tmp_path / how, launcher, how, restarts=1)
        assert code == 0, stderr
        (line,) = ours(stderr)
        assert line.startswith("lost rank 1 of 2: ") and line.endswith("to resume from the last checkpoint")
        assert "gloo" not in stderr
        rows = read(tmp_path / how / "run" / "metrics.jsonl")
        assert [row["step"] for row in rows if row["kind"] == "train"] == [*range(1, 9)]
        assert len(weights(tmp_path / how)) == 2 and weights(tmp_path / how) == weights(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("kill", 1, "lost rank 1 of 4: "),
        ("stop", 1, "lost rank 1 of 4: no sign of life"),
        ("fail", 2, "rank 1 of 4: cannot read the data"),
        ("bug", 1, "rank 1 of 4: ZeroDivisionError: no such number"),
    ],
)
def test_all_ranks_leave_with_one_line_that_names_the_one(tmp_path, launcher, how, code, said):
    status, stderr, seconds = run_losing(tmp_path, launcher, how, ranks=4)
    assert status == (code if launcher == "processes" else 1), stderr
    (line,) = ours(stderr)
    assert line.startswith(said)
    assert seconds < 60


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_run_whose_launcher_dies_saves_and_stops(tmp_path, launcher):
    code, _, _ = run_losing(tmp_path, launcher, "orphan")
    assert code == -9
    until = time.monotonic() + 30
    checkpoints = tmp_path / "run" / "checkpoints"
    while time.monotonic() < until and len(list(checkpoints.glob("step-????????"))) < 2:
        time.sleep(0.2)
    names = sorted(path.name for path in checkpoints.iterdir())
    assert names[-1] > "step-00000003"


@pytest.mark.slow
def test_an_interrupt_reaches_all_ranks_once(tmp_path):
    """As Ctrl-C on a terminal does, which only the launcher gets."""
    code, stderr, _ = run_losing(tmp_path, "processes", "interrupt")
    assert code == 75, stderr
    assert stderr.count("hornbook: stopped by SIGINT; step ") == 1 and not ours(stderr)
    assert run_losing(tmp_path, "processes", "never")[0] == 0
