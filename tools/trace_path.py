"""List the files and functions of hornbook that a command enters, in the order in which it first enters them.

A reader who wants to understand a command has to open these; CONTRIBUTING.md says how many there may be::

    python tools/trace_path.py train demo --data.train corpora/mine --training.steps 3
    python tools/trace_path.py --until hornbook.optim.adam:adamw train demo ...       # up to the first update
    python tools/trace_path.py --between hornbook.engine.step:train_step train demo ...  # one steady step

Every Python function counts that runs in this process, in whatever thread; generated ones, such as the ``__init__`` of
a dataclass, do not, nor do lambdas, comprehensions and class bodies.
"""

import argparse
import sys
import threading
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src" / "hornbook"
PACKAGE = f"{SOURCE}/"


class Trace:
    """Functions that were entered while the trace was open.

    Args:
        until: ``module:function`` whose first call closes the trace; the call itself counts.
        between: ``module:function`` whose second return opens the trace and whose third return closes it.
    """

    def __init__(self, until: str | None = None, between: str | None = None) -> None:
        self.entered: dict[CodeType, None] = {}
        self._until, self._between = until, between
        self._is_open, self._returns = between is None, 0

    def __enter__(self) -> "Trace":
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        if event == "call" and self._is_open and code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<"):
            self.entered.setdefault(code)
            self._is_open = name_of(code) != self._until
        elif event == "return" and name_of(code) == self._between:
            self._returns += 1
            self._is_open = self._returns == 2

    @property
    def files(self) -> dict[str, list[str]]:
        """Functions by file, both in order of entry."""
        found: dict[str, list[str]] = {}
        for code in self.entered:
            found.setdefault(code.co_filename.removeprefix(PACKAGE), []).append(code.co_qualname)
        return found


def name_of(code: CodeType) -> str:
    """Return ``hornbook.run.loop:train_until_done``."""
    module = code.co_filename.removeprefix(PACKAGE).removesuffix(".py").replace("/", ".")
    return f"hornbook.{module}:{code.co_qualname}"


def main() -> int:
    """Run the command under a trace and print what it entered."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--until", metavar="MODULE:FUNCTION", help="stop counting at its first call")
    parser.add_argument("--between", metavar="MODULE:FUNCTION", help="count from its second return to its third")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a command of hornbook and its arguments")
    arguments = parser.parse_args()
    from hornbook.__main__ import main as hornbook

    with Trace(arguments.until, arguments.between) as trace:
        status = hornbook(arguments.command)
    for file, functions in trace.files.items():
        print(f"{file:40} {', '.join(functions)}")
    lines = sum(len((SOURCE / file).read_text(encoding="utf-8").splitlines()) for file in trace.files)
    print(f"{len(trace.files)} files of {lines:,} lines, {len(trace.entered)} functions")
    return status


if __name__ == "__main__":
    sys.exit(main())
