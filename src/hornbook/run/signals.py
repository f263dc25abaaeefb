"""Signals ask a run to stop: the loop notes the first and obeys it, the second ends the process at once."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType

from hornbook.errors import StoppedBySignal

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name))


@dataclass
class Received:
    """The first signal that came in, or None."""

    name: str | None = None


@contextmanager
def listen(say: Callable[[str], None]) -> Iterator[Received]:
    """Note SIGINT, SIGTERM, SIGUSR1 and SIGHUP while the block runs; a second raises KeyboardInterrupt where it hits.

    Committed checkpoints survive that: a commit is one rename.

    Args:
        say: says at once that the signal was heard, since the loop obeys it only after a micro-batch or a step; called
            by a signal handler, so it may not use what that may have interrupted.
    """
    received = Received()

    def handle(number: int, frame: FrameType | None) -> None:
        if received.name is not None:
            raise KeyboardInterrupt
        received.name = signal.Signals(number).name
        say(f"hornbook: {received.name}: saves and stops; once more ends at once")

    with handle_all(handle):
        yield received


def handle_all(handle: Callable[[int, FrameType | None], None]) -> AbstractContextManager[None]:
    """Let ``handle`` answer all signals that ask a run to stop, inside the block."""
    return _handled(_SIGNALS, handle)


@contextmanager
def leave_cleanly() -> Iterator[None]:
    """Let SIGTERM, SIGUSR1 and SIGHUP raise StoppedBySignal inside the block, where the loop does not listen."""

    def handle(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        raise StoppedBySignal(f"stopped by {name} outside the training loop; run the same command again to resume")

    with _handled((number for number in _SIGNALS if number != signal.SIGINT), handle):
        yield


@contextmanager
def _handled(numbers: Iterable[int], handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let ``handle`` answer signals inside the block, but for a SIGHUP that `nohup` has switched off.

    They reach the main thread alone, so in another one nothing is heard.
    """
    previous = {}
    is_main = threading.current_thread() is threading.main_thread()
    for number in numbers if is_main else ():
        if signal.Signals(number).name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN:
            previous[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
