"""Fault injection: tests make the n-th disk operation fail, or the process die at that point.

    HORNBOOK_FAULT=write:3:enospc       the third write fails with a full disk
    HORNBOOK_FAULT=write:3+:enospc      the third write and all later ones fail
    HORNBOOK_FAULT=any:7:crash-after    the process dies (as from kill -9) after its seventh operation
    HORNBOOK_FAULT=write:1:crash-middle the process dies after half of the bytes of its first write

    with count_operations() as operations:  # [Operation("open", path), Operation("write", path), ...]
        save(folder, contents)
    with inject("any", 7, "crash-before"):
        save(folder, contents)

Every durable operation of hornbook goes through `hornbook.storage.system.perform` or ``write_all``, which call this
module once it is imported. A test that counts the operations of an action and then runs it with a fault at 1, 2, 3, ...
therefore covers every crash point (SQLite's method).
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar, get_args

from hornbook.errors import UserError
from hornbook.storage import system

OperationName = Literal["open", "write", "fsync", "rename", "unlink"]
"""``open`` includes creating a folder, and ``unlink`` removing one."""
AnyOperation = OperationName | Literal["any"]

VARIABLE: Final = "HORNBOOK_FAULT"
CRASH_STATUS: Final = 137
"""The exit status that a shell reports for a process ended by SIGKILL."""

_ERRORS: Final = {name: getattr(errno, name.upper()) for name in ("enospc", "eio", "edquot", "erofs", "eacces")}
_CRASHES: Final = ("crash-before", "crash-middle", "crash-after")
KINDS: Final = (*_CRASHES, "short-write", *_ERRORS)
"""``short-write`` writes half of the bytes and returns their number, as the system call may do."""

_WRITE_ONLY: Final = ("crash-middle", "short-write")

T = TypeVar("T")


class Operation(NamedTuple):
    """A durable operation that was attempted."""

    name: OperationName
    path: Path


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a ``kind`` at the ``n``-th operation called ``operation``, and at all later ones if ``lasting``."""

    operation: AnyOperation
    n: int
    kind: str
    lasting: bool = False

    def __post_init__(self) -> None:
        """Raise UserError for an invalid fault."""
        if self.operation not in ("any", *get_args(OperationName)) or self.kind not in KINDS or self.n < 1:
            raise UserError(
                f"{VARIABLE}: no fault {self.operation}:{self.n}:{self.kind}; expected OPERATION:N:KIND, with any or "
                f"one of {', '.join(get_args(OperationName))}, N from 1, and one of {', '.join(KINDS)}"
            )
        if self.kind in _WRITE_ONLY and self.operation != "write":
            raise UserError(f"{VARIABLE}: {self.kind} applies only to write, not to {self.operation}")


@dataclass(kw_only=True)
class _Armed:
    """A fault with the number of matching operations so far."""

    fault: Fault
    seen: int = 0

    def strikes(self, name: OperationName) -> bool:
        if self.fault.operation not in ("any", name):
            return False
        self.seen += 1
        return self.seen == self.fault.n or (self.fault.lasting and self.seen > self.fault.n)


_armed: list[_Armed] = []
_logs: list[list[Operation]] = []
_environment_read = False


def perform(name: OperationName, path: str | os.PathLike[str], action: Callable[[], T]) -> T:
    """Run ``action``, the system call called ``name``, with a fault point. Raises OSError if it fails."""
    kind = _check(name, path)
    result = action()
    _die_if(kind == "crash-after")
    return result


def write(path: str | os.PathLike[str], descriptor: int, data: memoryview) -> int:
    """Write bytes to an open file with a fault point; return how many were written. Raises OSError."""
    kind = _check("write", path)
    written = os.write(descriptor, data[: max(1, len(data) // 2)] if kind in _WRITE_ONLY else data)
    _die_if(kind in ("crash-middle", "crash-after"))
    return written


@contextmanager
def inject(operation: AnyOperation, n: int, kind: str, *, lasting: bool = False) -> Iterator[Callable[[], bool]]:
    """Inject a fault inside the block; yields a function that returns whether the ``n``-th operation was reached."""
    armed = _Armed(fault=Fault(operation=operation, n=n, kind=kind, lasting=lasting))
    _armed.append(armed)
    try:
        yield lambda: armed.seen >= n
    finally:
        _armed.remove(armed)


@contextmanager
def count_operations() -> Iterator[list[Operation]]:
    """Yield a list to which the operations inside the block are appended."""
    log: list[Operation] = []
    _logs.append(log)
    try:
        yield log
    finally:
        _logs[:] = [other for other in _logs if other is not log]


def parse_fault(text: str) -> Fault:
    """Parse ``OPERATION:N:KIND`` or ``OPERATION:N+:KIND``. Raises UserError for other texts."""
    operation, _, rest = text.partition(":")
    count, _, kind = rest.partition(":")
    digits = count.removesuffix("+")
    n = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
    return Fault(operation=operation, n=n, kind=kind, lasting=count.endswith("+"))  # type: ignore[arg-type]


def _check(name: OperationName, path: str | os.PathLike[str]) -> str | None:
    """Count an operation; die or raise OSError if a fault before it is due; return the kind of any other due fault."""
    global _environment_read
    if not _environment_read:
        _environment_read = True
        if text := os.environ.get(VARIABLE):
            _armed.append(_Armed(fault=parse_fault(text)))
    if not _armed and not _logs:
        return None
    for log in _logs:
        log.append(Operation(name, Path(path)))
    due = [armed.fault.kind for armed in list(_armed) if armed.strikes(name)]
    kind = due[0] if due else None
    _die_if(kind == "crash-before")
    if kind in _ERRORS:
        raise OSError(_ERRORS[kind], os.strerror(_ERRORS[kind]), os.fspath(path))
    return kind


def _die_if(due: bool) -> None:
    if due:
        os._exit(CRASH_STATUS)


system.fault_points = sys.modules[__name__]
