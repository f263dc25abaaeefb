"""Start real ranks: by torchrun, or by ``hornbook train --processes``."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HELPERS = Path(__file__).parent
PARALLEL = HELPERS.parent / "parallel"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def environment(*paths: Path, **variables: str) -> dict[str, str]:
    """One thread a rank, with the test's own modules to import."""
    known = [str(path) for path in (*paths, HELPERS, PARALLEL)]
    path = os.pathsep.join([*known, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}


def python(*words: object, timeout: float = 600, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS`` to its end."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=timeout, check=False
    )


def train_on_ranks(num_ranks: int, runs: Mapping[Path, Sequence[object]]) -> None:
    """Train each run, a folder with its recipe and options, on ranks that are started once for all of them."""
    given = {str(folder): list(map(str, words)) for folder, words in runs.items()}
    done = python(*TORCHRUN, num_ranks, HELPERS / "run_ranks.py", json.dumps(given))
    assert done.returncode == 0, done.stderr


def errors_of(num_ranks: int, runs: Sequence[Sequence[str]]) -> list[list[float]]:
    """Return by how much the plan of each run, a recipe and its options, is off: one relative error for each rank."""
    done = python(*TORCHRUN, num_ranks, HELPERS / "check_ranks.py", json.dumps(runs), KINETO_LOG_LEVEL="99")
    assert done.returncode == 0, done.stderr
    errors: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return errors
