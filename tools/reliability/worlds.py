"""Ranks on this machine that are forked from the preloaded parent, which saves each of them the import of torch."""

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import TCPStore
from trials import fork

from hornbook.cli.main import main

PIPELINE, SCHEDULE, TENSOR = "parallel.pipeline_parallel=", "parallel.pipeline_schedule=", "parallel.tensor_parallel="
SHARD, SEQUENCE, PHASED = "parallel.data_parallel=shard", "parallel.sequence_parallel=true", "memory.execution=phased"
HYBRID = "parallel.data_parallel=hybrid parallel.shard_size="


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def fork_ranks(size: int, action: Callable[[], int], log: Path, **variables: object) -> list[int]:
    """Fork ranks that run ``action`` and exit with what it returns; return their process ids.

    Their store is in rank 0, as if ``srun`` had started them, unless ``variables`` of the environment say otherwise.
    """
    common = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), **variables}
    return [_fork_to(action, log, RANK=rank, LOCAL_RANK=rank, **common) for rank in range(size)]


def fork_store(port: int, size: int, log: Path) -> int:
    """Fork a process that holds the store of ranks and nothing else; return its process id once it listens."""

    def hold() -> int:
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=1))
        time.sleep(3600)
        return store is None

    child = _fork_to(hold, log)
    while True:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return child
        time.sleep(0.01)


def ends_of(children: list[int]) -> list[int]:
    """Wait for processes, and return their exit codes."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def train_on_ranks(size: int, words: list[str], log: Path) -> None:
    """Run a command line of hornbook on forked ranks to its end."""
    codes = ends_of(fork_ranks(size, lambda: main(words), log))
    assert codes == [0] * size, f"exit codes {codes}"


def _fork_to(action: Callable[[], int], log: Path, **variables: object) -> int:
    child = fork()
    if child == 0:
        status = 70
        try:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ |= {name: str(value) for name, value in variables.items()}
            status = action()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return child
