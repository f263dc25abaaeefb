"""Signals ask a run to stop: the first is noted and obeyed after the step, the second ends the process at once."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))


@dataclass
class Received:
    """The first signal that came in, or None."""

    name: str | None = None


@contextmanager
def listen(*, is_first: bool = True) -> Iterator[Received]:
    """Note SIGINT, SIGTERM and SIGUSR1 while the block runs; a second one raises KeyboardInterrupt where it hits.

    A step of a large batch takes its time, so the first rank says at once, on standard error, that it heard.

    Committed checkpoints survive that: a commit is one rename.
    """
    received = Received()

    def handle(number: int, frame: FrameType | None) -> None:
        if received.name is not None:
            raise KeyboardInterrupt
        received.name = signal.Signals(number).name
        if is_first:
            told = f"\nhornbook: {received.name}: saves after this step and stops; once more ends at once\n"
            os.write(2, told.encode())  # a handler may not use what it may have interrupted

    previous = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
