"""Start real ranks: by torchrun, or by ``hornbook train --processes``."""

import os
import subprocess
import sys
from pathlib import Path

HELPERS = Path(__file__).parent
PARALLEL = HELPERS.parent / "parallel"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def environment(*paths: Path, **variables: str) -> dict[str, str]:
    """One thread a rank, with the test's own modules to import."""
    known = [str(path) for path in (*paths, HELPERS, PARALLEL)]
    path = os.pathsep.join([*known, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}


def python(*words: object, timeout: float = 120, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS`` to its end."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=timeout, check=False
    )
