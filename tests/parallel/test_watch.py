"""A rank that is lost is noticed and named, and torchrun's restart finishes the run."""

import subprocess
import sys
from pathlib import Path

import pytest

from hornbook.track.metrics import read

HERE = Path(__file__).parent
HELPERS = HERE.parent / "helpers"
RECIPE = """
[model]
num_layers = 1
hidden_size = 16
num_heads = 2
vocab_size = 70
max_positions = 8
[data]
synthetic = true
[training]
steps = 8
global_batch_size = 4
micro_batch_size = 2
[checkpoint]
every_steps = 3
[tracking]
log_every_steps = 1
"""


def run_losing(folder, how, *, restarts):
    """Train on 2 ranks, one of which is lost after step 5 of the first start."""
    (folder / "tiny.toml").write_text(RECIPE)
    words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    command = [sys.executable, "-m", "torch.distributed.run", *words, str(HERE / "lost_rank.py")]
    return subprocess.run([*command, str(folder), how], capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_lost_rank_is_named_and_a_restart_finishes_the_run(tmp_path, how):
    done = run_losing(tmp_path, how, restarts=1)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("hornbook: error: lost rank 1 of 2: no sign of life; the others stop: run the same") == 1
    assert "gloo" not in done.stderr
    assert [row["step"] for row in read(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "train"] == [*range(1, 9)]
