"""Start real ranks: as forks of this process, by torchrun, or by ``hornbook train --processes``."""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path

import run_ranks
from torch.distributed import TCPStore

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


def fork_ranks(num_ranks: int, main: Callable[..., None], *arguments: object, timeout: float = 600) -> str:
    """Let so many ranks call ``main(*arguments)``; return what they write to stderr, and fail if one does.

    A new process imports torch for 4 s, and torchrun is one more; a fork has what this process has imported.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryFile("w+") as said, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 and newer, since pytest-xdist has threads
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        given = {"WORLD_SIZE": num_ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
        given["TORCHELASTIC_USE_AGENT_STORE"] = True
        ranks = [
            context.Process(target=_rank, args=(given | {"RANK": rank}, said.fileno(), main, arguments))
            for rank in range(num_ranks)
        ]
        for rank in ranks:
            rank.start()
        running = ranks
        while running and not any(rank.exitcode for rank in ranks):
            if not wait([rank.sentinel for rank in running], timeout):
                break
            running = [rank for rank in running if rank.exitcode is None]
        for rank in running:
            rank.kill()
        for rank in ranks:
            rank.join()
        said.seek(0)
        text = said.read()
    assert not any(rank.exitcode for rank in ranks), text
    return text


def _rank(variables: Mapping[str, object], said: int, main: Callable[..., None], arguments: Sequence[object]) -> None:
    os.environ.update({name: str(value) for name, value in variables.items()})
    os.dup2(said, 2)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - pytest put another in its place
    main(*arguments)


def train_on_ranks(num_ranks: int, runs: Mapping[Path, Sequence[object]]) -> None:
    """Train each run, a folder with its recipe and options, on ranks that are started once for all of them."""
    fork_ranks(num_ranks, run_ranks.main, {str(folder): list(map(str, words)) for folder, words in runs.items()})


def errors_of(num_ranks: int, runs: Sequence[Sequence[str]]) -> list[list[float]]:
    """Return by how much the plan of each run, a recipe and its options, is off: one relative error for each rank."""
    done = python(*TORCHRUN, num_ranks, HELPERS / "check_ranks.py", json.dumps(runs), KINETO_LOG_LEVEL="99")
    assert done.returncode == 0, done.stderr
    errors: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return errors
