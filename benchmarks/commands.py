"""What the experiments in this folder share: hornbook's commands, and the price of a training step."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_TIMED_STEPS = 3


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


def step_seconds(recipe: str, corpus: Path, words: Sequence[str]) -> float:
    """Return the processor time of a step of a recipe on one thread, see `seconds_of`."""
    import torch

    from hornbook.config import load_recipe
    from hornbook.measure.throughput import hornbook_step
    from hornbook.parallel.world import World

    torch.set_num_threads(1)
    vocab_size = json.loads((corpus / "train" / "manifest.json").read_text())["vocab_size"]
    given = ["--data.train", str(corpus), f"--model.vocab-size={vocab_size}", *words]
    return seconds_of(hornbook_step(load_recipe(recipe, given).recipe, World(device=torch.device("cpu"))))


def seconds_of(step: Callable[[], object]) -> float:
    """Return the least processor time of three calls after a first one, which compiles and allocates."""
    step()
    taken = []
    for _ in range(_TIMED_STEPS):
        start = time.process_time()
        step()
        taken.append(time.process_time() - start)
    return min(taken)
