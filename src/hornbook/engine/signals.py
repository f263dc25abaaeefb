"""Signals ask a run to stop: the first is noted and obeyed after the step, the second ends the process at once."""

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
def listen() -> Iterator[Received]:
    """Note SIGINT, SIGTERM and SIGUSR1 while the block runs; a second one raises KeyboardInterrupt where it hits.

    Committed checkpoints survive that: a commit is one rename.
    """
    received = Received()

    def handle(number: int, frame: FrameType | None) -> None:
        if received.name is not None:
            raise KeyboardInterrupt
        received.name = signal.Signals(number).name

    previous = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
