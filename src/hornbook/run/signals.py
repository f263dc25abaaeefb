"""Signals ask a run to stop: the first is noted and obeyed after the step, the second ends the process at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from hornbook.errors import StoppedBySignal

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name))


@dataclass
class Received:
    """The first signal that came in, or None."""

    name: str | None = None


@contextmanager
def listen(*, is_first: bool = True) -> Iterator[Received]:
    """Note SIGINT, SIGTERM, SIGUSR1 and SIGHUP while the block runs; a second raises KeyboardInterrupt where it hits.

    In another thread than the main one, which a program in Python may train in, it listens to nothing.

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
            with suppress(OSError):  # the terminal may be gone
                os.write(2, told.encode())  # a handler may not use what it may have interrupted

    is_main = threading.current_thread() is threading.main_thread()  # signals reach no other thread
    heard = [number for number in _SIGNALS if is_main and not _is_ignored_hangup(number)]
    previous = {number: signal.signal(number, handle) for number in heard}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def leave_cleanly() -> Iterator[None]:
    """Let SIGTERM, SIGUSR1 and SIGHUP raise StoppedBySignal inside the block, where the loop does not listen."""

    def handle(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        raise StoppedBySignal(f"stopped by {name} outside the training loop; run the same command again to resume")

    heard = [number for number in _SIGNALS if number != signal.SIGINT and not _is_ignored_hangup(number)]
    previous = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _is_ignored_hangup(number: int) -> bool:
    """Whether the signal is SIGHUP and `nohup` has switched it off."""
    return signal.Signals(number).name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN
