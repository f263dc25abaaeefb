"""Train a tiny run as one rank of ``torchrun``, which test_watch.py lets lose a rank: ``lost_rank.py FOLDER HOW``.

Once the first checkpoint is there, rank 1 of the first start dies (``kill``), stops (``stop``) or fails (``fail``).
"""

import os
import signal
import sys
from pathlib import Path

from hornbook.cli.main import main
from hornbook.engine.step import StepResult
from hornbook.errors import DataError
from hornbook.parallel import watch
from hornbook.run.training_run import TrainingRun

watch._BEAT_SECONDS, watch._WINDOW_SECONDS, watch._SILENCE_SECONDS = 0.2, 1.0, 2.0


def lose(how: str) -> None:
    if how == "fail":
        raise DataError("rank 1 cannot read its data")
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[how])


def run(folder: Path, how: str) -> int:
    record = TrainingRun.record

    def record_and_lose(run: TrainingRun, result: StepResult) -> None:
        record(run, result)
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if run.world.rank == 1 and run.state.progress.step == 5 and first:
            lose(how)

    TrainingRun.record = record_and_lose
    words = ["train", str(folder / "tiny.toml"), "--output", str(folder / "run"), "--device", "cpu", "--threads", "1"]
    return main(words)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2]))
