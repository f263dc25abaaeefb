"""Start real ranks: by torchrun, as forks of this process or as a command, or by ``hornbook train --processes``."""

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM
from typing import Any

import pytest
import run_ranks
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from hornbook.ops.native.build import find_compiler
from hornbook.ops.native.cache import BuildError

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


def steps_without_gpu(script: Path, *words: str) -> Any:
    """Return the JSON that a script prints about steps on a GPU without values; skip the test without a compiler."""
    try:
        find_compiler()
    except BuildError:
        if "+cpu" in importlib.metadata.version("torch"):
            pytest.skip("there is no C++ compiler")
    done = python(script, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fork_ranks(num_ranks: int, main: Callable[..., None], *arguments: object, seconds: int = 600) -> str:
    """Let ranks of torchrun's agent call ``main(*arguments)``; return what they write to stderr, and fail if one does.

    They are forks of this process: a new one imports torch for 4 s.
    """

    def rank() -> None:
        main(*arguments)

    handlers = {number: signal.getsignal(number) for number in (SIGTERM, SIGINT, SIGHUP, SIGQUIT)}
    with tempfile.TemporaryDirectory() as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_ranks,
            start_method="fork",
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            run_id=Path(folder).name,
            max_restarts=0,
            monitor_interval=0.05,
            logs_specs=DefaultLogsSpecs(log_dir=folder, redirects=Std.ERR),
        )
        signal.alarm(seconds)  # ends this process, and with it the ranks
        try:
            elastic_launch(config, rank)()
        except ChildFailedError as error:
            pytest.fail(f"{error}\n{_written(folder)}")
        finally:
            signal.alarm(0)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return _written(folder)


def _written(folder: str) -> str:
    """Return what all ranks wrote to stderr."""
    return "".join(path.read_text(encoding="utf-8") for path in sorted(Path(folder).rglob("stderr.log")))


def train_on_ranks(num_ranks: int, runs: Mapping[Path, Sequence[object]]) -> None:
    """Train each run, a folder with its recipe and options, on ranks that are started once for all of them."""
    fork_ranks(num_ranks, run_ranks.main, {str(folder): list(map(str, words)) for folder, words in runs.items()})


def errors_of(num_ranks: int, runs: Sequence[Sequence[str]]) -> list[list[float]]:
    """Return by how much the plan of each run, a recipe and its options, is off: one relative error for each rank."""
    done = python(*TORCHRUN, num_ranks, HELPERS / "check_ranks.py", json.dumps(runs), KINETO_LOG_LEVEL="99")
    assert done.returncode == 0, done.stderr
    errors: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return errors
