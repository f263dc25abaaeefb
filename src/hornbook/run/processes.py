"""``--processes N``: start N ranks of this command on this machine, and return their exit code.

::

    hornbook train demo --processes 2 --max-restarts 1
      |- hornbook train demo     RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_PORT=...
      `- hornbook train demo     RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_PORT=...

The ranks get the environment variables that ``torchrun`` would set, and this process hosts PyTorch's rendezvous store,
as ``torchrun`` does. So the runs are the same, with three differences: the exit code is that of the rank that failed,
while ``torchrun`` always returns 1; a signal, SIGUSR1 included, reaches every rank, which gets the time that it needs
to save; and ranks restart, from the newest intact checkpoint, only after failures that a retry may fix.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from types import FrameType

import torch
from torch._C._distributed_c10d import TCPStore

from hornbook.errors import HornbookError, StoppedBySignal, UserError
from hornbook.parallel.device import default_threads
from hornbook.parallel.launched import signals_to
from hornbook.parallel.rendezvous import LAUNCHER, report, start_of
from hornbook.parallel.watch import REMEDY

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 20.0
"""Time for the other ranks to exit by themselves after one has failed; a hanging one never does."""


def run_ranks(words: Sequence[str], processes: int, *, device: str = "auto", max_restarts: int = 0) -> int:
    """Run ``hornbook`` with ``words`` as ``processes`` ranks, restarted up to ``max_restarts`` times if that may help.

    Args:
        words: the command line, without ``--processes`` and ``--max-restarts``.
        processes: number of ranks.
        device: value of ``--device``; GPUs are counted before the start.
        max_restarts: how often to restart all ranks after one was killed or failed with exit code 1.

    Returns:
        0, or the exit code of the rank that failed, which has printed the reason.

    Raises:
        UserError: the machine has fewer GPUs.
        RankError: a rank was killed.
        StoppedBySignal: a signal ended the ranks before they could handle it.
    """
    num_gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if 0 < num_gpus < processes:
        raise UserError(f"`processes={processes}` needs {processes} GPUs, but there are {num_gpus}; lower it")
    for restart in range(max_restarts + 1):
        ranks = _Ranks(words, processes, restart)
        code = ranks.wait()
        if code != HornbookError.exit_code or restart == max_restarts or ranks.signal is not None:
            break
        why = f"hornbook: error: {ranks.error}\n" if ranks.error else ""
        os.write(2, f"{why}hornbook: restart {restart + 1} of {max_restarts}\n".encode())
    if ranks.error is not None:
        raise ranks.error
    return code


def _program(words: Sequence[str]) -> list[str]:
    """Return Python's arguments for a rank: the running script with custom parts, or hornbook."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None) or ""
    is_script = main.__spec__ is None and file.endswith(".py")
    has_these_words = without(sys.argv[1:], "--processes", "--max-restarts") == [*words]
    return [file] if is_script and has_these_words else ["-m", "hornbook"]


class _Ranks:
    """The rank processes of one start."""

    def __init__(self, words: Sequence[str], size: int, restart: int) -> None:
        self.signal: int | None = None
        self.error: HornbookError | None = None
        """An error that no rank has printed itself."""
        self._size, self._restart = size, restart
        self._server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=1))
        command = [sys.executable, *_program(words), *words]
        # in separate sessions, so that Ctrl-C reaches them only once, through this process
        self._processes = [
            subprocess.Popen(command, env=self._environment(rank), start_new_session=True) for rank in range(size)
        ]

    def wait(self) -> int:
        """Wait for all ranks, pass on signals, and return the exit code."""
        code, give_up = 0, float("inf")
        with signals_to(self._pass_on):
            while any(process.poll() is None for process in self._processes):
                ended = [(rank, process.poll()) for rank, process in enumerate(self._processes)]
                failed = [(rank, status) for rank, status in ended if status]
                if failed and not code:
                    code, give_up = self._answer(*failed[0]), time.monotonic() + _GRACE_SECONDS
                if time.monotonic() > give_up:
                    self._send(signal.SIGKILL)
                time.sleep(_POLL_SECONDS)
        failed = [(rank, process.returncode) for rank, process in enumerate(self._processes) if process.returncode]
        return code or (self._answer(*failed[0]) if failed else 0)

    def _answer(self, rank: int, status: int) -> int:
        """Return the exit code for a rank's ``status``, and stop the others if it was killed."""
        if status > 0:
            return status
        name = signal.Signals(-status).name
        if self.signal == -status:
            self.error = StoppedBySignal(f"stopped by {name}; run the same command again")
            return self.error.exit_code
        line = f"lost rank {rank} of {self._size}: killed by {name}; {REMEDY}"
        error = report(start_of(self._server, str(self._restart)), LAUNCHER, line, HornbookError.exit_code)
        if not error.is_reported:
            self.error = error
        return HornbookError.exit_code

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._send(number)

    def _send(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def _environment(self, rank: int) -> dict[str, str]:
        own = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "GROUP_RANK": 0,
            "WORLD_SIZE": self._size,
            "LOCAL_WORLD_SIZE": self._size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self._server.port,
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "TORCHELASTIC_RESTART_COUNT": self._restart,
        }
        threads = {"OMP_NUM_THREADS": str(max(1, default_threads() // self._size))}
        return threads | os.environ | {key: str(value) for key, value in own.items()}


def without(words: Sequence[str], *options: str) -> list[str]:
    """Return ``words`` without options and their values, ``--processes 4`` or ``--processes=4``."""
    kept: list[str] = []
    left = iter(words)
    for word in left:
        name, has_value, _ = word.partition("=")
        if name not in options:
            kept.append(word)
        elif not has_value:
            next(left, None)
    return kept
