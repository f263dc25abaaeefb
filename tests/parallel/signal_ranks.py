"""Run by torchrun: the last rank receives SIGTERM in the middle of step 3; each rank writes what its run said."""

import os
import signal
import sys
from pathlib import Path

import tiny_runs

from hornbook.engine import step as engine_step
from hornbook.errors import RankError, StoppedBySignal


def main(folder: Path) -> None:
    """Train until the signal; with four samples a step, each of two ranks has two micro-batches."""
    rank, begun = int(os.environ["RANK"]), []
    to_device = engine_step.to_device

    def move(batch, device):
        begun.append(batch)
        if rank == 1 and len(begun) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return to_device(batch, device)

    engine_step.to_device = move
    try:
        tiny_runs.train(
            tiny_runs.load_recipe(str(folder / "tiny.toml"), ["--training.micro-batch-size=1"]),
            output=folder / "run",
            device="cpu",
            threads=1,
        )
    except (StoppedBySignal, RankError) as stop:  # rank 0 tells for all
        (folder / f"{rank}.txt").write_text(f"{len(begun)} {stop}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
