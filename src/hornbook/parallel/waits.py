"""Measure the time that a process waits in communication."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch.distributed as dist


@contextmanager
def blocked(marked: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Iterator[list[float]]:
    """Collect the duration of each wait in seconds: all of PyTorch's communication calls ``Work.wait``.

    Each wait runs in the context ``marked()``.
    """
    wait, seconds = dist.Work.wait, []

    def timed(work: Any, *args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            with marked():
                return wait(work, *args, **options)
        finally:
            seconds.append(time.perf_counter() - start)

    dist.Work.wait = timed  # type: ignore[method-assign, assignment]
    try:
        yield seconds
    finally:
        dist.Work.wait = wait  # type: ignore[method-assign]
