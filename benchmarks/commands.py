"""The commands of hornbook, for the experiments in this folder."""

import json
import os
import subprocess
import sys


def hornbook(*words: str) -> dict[str, float]:
    """Run a command of hornbook on one thread and return its result.

    Raises:
        SystemExit: it failed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "hornbook", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"hornbook {' '.join(words)} failed: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found
