"""A launched process: which rank it is, which of the ranks prints an error, and what signals ask of it; without torch.

``torchrun`` tells a process its rank, and so does ``hornbook train --processes``. The loop notes the first signal and
obeys it between two micro-batches or steps; the second one ends the process at once.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from hornbook.errors import HornbookError, RankError, StoppedBySignal

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name))


def is_rank() -> bool:
    """Tell whether this process is a rank that ``torchrun`` or ``--processes`` started."""
    return os.environ.keys() >= {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def rank() -> int:
    """Return the number of this rank; 0 for a process on its own."""
    return int(os.environ["RANK"]) if is_rank() else 0


def num_ranks() -> int:
    """Return the number of ranks; 1 for a process on its own."""
    return int(os.environ["WORLD_SIZE"]) if is_rank() else 1


@contextmanager
def told_once() -> Iterator[None]:
    """Let one rank alone print an error of the block, which comes before the ranks have met.

    For a store in rank 0 it is too early; each rank then prints its own line.
    """
    try:
        yield
    except HornbookError as error:
        if not is_rank() or isinstance(error, RankError):
            raise
        from hornbook.parallel.meeting import launcher_has_store, open_store, tell  # imports torch

        if not launcher_has_store():
            raise
        line = f"rank {rank()} of {num_ranks()}: {error}"
        raise tell(open_store(rank(), num_ranks()), rank(), line, error.exit_code) from error


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
        say(f"hornbook: {received.name}: saving and stopping; send it again to exit at once")

    with signals_to(handle):
        yield received


@contextmanager
def leave_cleanly() -> Iterator[None]:
    """Let SIGTERM, SIGUSR1 and SIGHUP raise StoppedBySignal inside the block, where the loop does not listen."""

    def handle(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        raise StoppedBySignal(f"stopped by {name} outside the training loop; run the same command again to resume")

    with signals_to(handle, [number for number in _SIGNALS if number != signal.SIGINT]):
        yield


@contextmanager
def signals_to(handle: Callable[[int, FrameType | None], None], numbers: Sequence[int] = _SIGNALS) -> Iterator[None]:
    """Let ``handle`` answer signals inside the block, by default all that ask a run to stop.

    A SIGHUP that `nohup` has switched off stays so. Signals reach the main thread alone, so in another one nothing is
    heard.
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
