"""A launched process, before torch is imported: its rank, its errors, its signals and its device.

``torchrun`` and ``hornbook train --processes`` set the rank in environment variables. The training loop records the
first signal and handles it between two micro-batches or steps; the second ends the process at once. The device is known
early if the machine surely has no GPU. Then torch is imported, without the garbage collector.
"""

import _thread
import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import FrameType

from hornbook.errors import TERMINATING, HornbookError, RankError, StoppedBySignal, Terminated, UserError

_SIGNALS = (signal.SIGINT, *TERMINATING)
_PAUSE_SECONDS = 0.05


def is_rank() -> bool:
    """Return whether ``torchrun`` or ``--processes`` started this process."""
    return os.environ.keys() >= {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def rank() -> int:
    """Return the rank of this process; 0 for a single process."""
    return int(os.environ["RANK"]) if is_rank() else 0


def num_ranks() -> int:
    """Return the number of ranks; 1 for a single process."""
    return int(os.environ["WORLD_SIZE"]) if is_rank() else 1


@contextmanager
def report_once() -> Iterator[None]:
    """Make only one rank print an error of the ``with`` block, which runs before the rendezvous.

    If rank 0 would hold the store, it does not exist yet; each rank then prints its own line.
    """
    try:
        yield
    except (HornbookError, Terminated) as error:
        if not is_rank() or isinstance(error, RankError):
            raise
        from hornbook.parallel.rendezvous import launcher_has_store, open_store, report  # imports torch

        if not launcher_has_store():
            raise
        line = f"rank {rank()} of {num_ranks()}: {error}"
        raise report(open_store(rank(), num_ranks()), rank(), line, error.exit_code) from error


@dataclass
class Received:
    """The name of the first signal received, or None."""

    name: str | None = None


@contextmanager
def listen(say: Callable[[str], None]) -> Iterator[Received]:
    """Record the first SIGINT, SIGTERM, SIGUSR1 or SIGHUP in the ``with`` block; a second raises KeyboardInterrupt.

    Committed checkpoints survive that, since a commit is one rename.

    Args:
        say: prints a line at once, since the loop handles the signal only after a micro-batch or a step; called by a
            signal handler, so it must be reentrant.
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
    """Make SIGINT raise KeyboardInterrupt in the ``with`` block, and other signals Terminated, later StoppedBySignal.

    While torch is imported, the first one waits, since torch's C++ drops some of the exceptions that handlers raise.
    """
    postponed, ended = list[int](), threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if not postponed and _torch_is_being_imported():
            postponed.append(number)
            _thread.start_new_thread(send_again, ())  # threading's have a lock, which may be held here
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise Terminated.by(number)

    def send_again() -> None:
        while _torch_is_being_imported():
            time.sleep(_PAUSE_SECONDS)
        if not ended.is_set():
            os.kill(os.getpid(), postponed[0])

    try:
        with signals_to(handle):
            yield
    except Terminated as stop:
        raise StoppedBySignal(str(stop)) from None
    finally:
        ended.set()


def _torch_is_being_imported() -> bool:
    return getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False)


@contextmanager
def signals_to(handle: Callable[[int, FrameType | None], None], numbers: Sequence[int] = _SIGNALS) -> Iterator[None]:
    """Handle signals by ``handle`` in the ``with`` block, by default all that stop a run.

    Ignored ones stay ignored, such as SIGHUP by `nohup`, and SIGINT in the background of a script. Python handles
    signals only in the main thread, so in other threads this has no effect.
    """
    previous = {}
    is_main = threading.current_thread() is threading.main_thread()
    for number in numbers if is_main else ():
        if signal.getsignal(number) != signal.SIG_IGN:
            previous[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def choose_name(name: str, present: Sequence[str], version: str) -> str:
    """Return the device ``name``: auto, cpu, cuda (that of this local rank), cuda:N or mps.

    Args:
        name: as asked for.
        present: the devices, fastest first.
        version: of PyTorch.

    Raises:
        UserError: the device is not present.
    """
    wanted = present[0].partition(":")[0] if name == "auto" else name
    if wanted == "cuda":
        wanted = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    if wanted not in present:
        raise UserError(
            f"this PyTorch ({version}) has no device {wanted!r}; available: {', '.join(present)}; choose another "
            "`device`"
        )
    return wanted


def device_without_torch(name: str) -> str | None:
    """Return what ``choose_name`` does if it is certain without importing torch, as on a machine without a GPU.

    Raises:
        UserError: the device is certainly not present.
    """
    if name == "cpu":
        return name
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:  # built from source
        return None
    return choose_name(name, ["cpu"], version) if "torch" not in sys.modules and _has_only_cpu(version) else None


def _has_only_cpu(version: str) -> bool:
    """Return whether Linux has no GPU that this PyTorch could use: none of NVIDIA's driver, nor AMD's device."""
    if sys.platform != "linux":
        return False
    if version.endswith("+cpu"):
        return True
    try:
        ctypes.CDLL("libcuda.so.1")  # as PyTorch does
    except OSError:
        return not Path("/dev/kfd").exists()
    return False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector in the ``with`` block, and never look at what it left, such as modules.

    Modules are not garbage, but their objects would be visited again and again while more are made, and twice at exit.
    Without this, importing torch and exiting takes 1.3 to 1.45 times as long. If torch was there before, nothing is
    done: what earlier commands of the process left would be kept for good.
    """
    if "torch" in sys.modules:
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
