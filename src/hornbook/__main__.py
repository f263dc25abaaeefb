"""The entry point of ``hornbook`` and ``python -m hornbook``.

Signals are answered from the start: importing the command line takes a tenth of a second, on a busy machine seconds.
"""

import contextlib
import signal
import sys
from types import FrameType

from hornbook.errors import TERMINATING, Terminated

_EARLY = [number for number in TERMINATING if signal.getsignal(number) == signal.SIG_DFL]  # others may be ignored


def _leave(number: int, frame: FrameType | None) -> None:
    raise Terminated.by(number)


try:
    with contextlib.suppress(ValueError):  # Python handles signals only in the main thread
        for number in _EARLY:
            signal.signal(number, _leave)
    from hornbook.cli.main import main
except KeyboardInterrupt:  # `main` answers later ones
    sys.stderr.write("hornbook: error: interrupted\n")
    sys.exit(130)
except Terminated as stop:
    sys.stderr.write(f"hornbook: {stop}\n")
    sys.exit(stop.exit_code)
finally:
    with contextlib.suppress(ValueError):
        for number in _EARLY:
            signal.signal(number, signal.SIG_DFL)

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
