"""Make rank 1 of the first start go wrong after step 5: test_watch.py has every rank of a real run import this.

``HORNBOOK_TEST_LOSE`` says how: it dies (``kill``), stops (``stop``), fails (``fail``; ``first``: rank 0), or loses
its launcher (``orphan``). Where that is rank 0, the store dies with it (``host``) or with its launcher (``node``).
``wait`` only leaves time for others. Heartbeats are faster than usual.
"""

import os
import signal
import time
from pathlib import Path

from hornbook.engine.step import StepResult
from hornbook.errors import DataError
from hornbook.parallel import watch
from hornbook.run import processes
from hornbook.run.training_run import TrainingRun

watch._BEAT_SECONDS, watch._WINDOW_SECONDS, watch._SILENCE_SECONDS, watch._GRACE_SECONDS = 0.2, 1.0, 2.0, 1.0
processes._GRACE_SECONDS = 4.0
RANKS = {"first": 0, "orphan": 0, "interrupt": 0, "host": 0, "node": 0}
"""Where it is not rank 1 that goes wrong."""


def lose(how: str) -> None:
    if how in ("fail", "first"):
        raise DataError("cannot read the data")
    if how == "never":
        return
    if how == "bug":
        raise ZeroDivisionError("no such number")
    if how == "wait":
        time.sleep(15)
        return
    if how == "node":  # the machine: first the launcher, then the rank itself
        os.kill(os.getppid(), signal.SIGKILL)
    if how in ("host", "node"):
        os.kill(os.getpid(), signal.SIGKILL)
    signals = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "orphan": signal.SIGKILL, "interrupt": signal.SIGINT}
    os.kill(os.getppid() if how in RANKS else os.getpid(), signals[how])
    time.sleep(3 if how in RANKS else 0)  # until the signal has come back, or the launcher is missed


def patch(how: str, lost: str) -> None:
    """Let this rank go wrong, and touch the file ``lost`` when it does."""
    record = TrainingRun.record

    def record_and_lose(run: TrainingRun, result: StepResult) -> None:
        record(run, result)
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if run.world.size > 1 and run.world.rank == RANKS.get(how, 1) and run.state.progress.step == 5 and first:
            Path(lost).touch()
            lose(how)

    TrainingRun.record = record_and_lose
