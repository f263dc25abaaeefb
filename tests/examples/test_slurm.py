"""The SLURM script: its syntax, and a job of two nodes that are processes of this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import environment
from tiny_runs import RECIPE

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm.sh"
SRUN = '#!/bin/bash\nshift\n"$@" &\nONE=$!\n"$@" &\nTWO=$!\nwait "$ONE" && wait "$TWO"\n'


def test_the_script_is_bash():
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


@pytest.mark.slow
def test_two_nodes_train_one_run(tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    commands = {"srun": SRUN, "scontrol": "#!/bin/bash\necho localhost\n"}
    for name, text in commands.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "localhost"}
    python_of_the_tests = Path(sys.executable).parent
    job |= {"PATH": f"{tmp_path}:{python_of_the_tests}:{os.environ['PATH']}", "GPUS_PER_NODE": "1", "RESTARTS": "0"}
    words = ["tiny.toml", "--device", "cpu", "--threads", "1", "--output", "run"]
    done = subprocess.run(
        ["bash", str(SCRIPT), *words],
        cwd=tmp_path,
        env=environment(**job),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 ranks" in done.stderr and done.stderr.count("step 8/8") == 1
    assert (tmp_path / "run" / "checkpoints" / "step-00000008" / "manifest.json").exists()
