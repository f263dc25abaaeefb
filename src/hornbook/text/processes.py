"""Processes of this machine that work for this one, and end with it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait


@contextmanager
def worker_pool(processes: int, environment: Mapping[str, str] | None = None) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes; an error in the block ends them at once, the end of the block after their tasks.

    They are spawned, not forked, on every system; they ignore Ctrl-C and exit with this process.

    Args:
        processes: number of processes.
        environment: variables to set in them.
    """
    spawn = multiprocessing.get_context("spawn")
    theirs, ours = spawn.Pipe(duplex=False)
    with theirs, ours:
        executor = ProcessPoolExecutor(processes, spawn, _start, (theirs, dict(environment or {})))
        try:
            yield executor
        except BaseException:
            ours.close()
            raise
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


def _start(pipe: Connection, environment: dict[str, str]) -> None:
    """Ignore Ctrl-C, which the parent handles, and exit when the parent does or closes its end of the pipe."""
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a spawned process"

    def follow() -> None:
        wait([parent.sentinel, pipe])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
