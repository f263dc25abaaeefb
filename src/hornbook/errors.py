"""The exceptions of hornbook and the exit codes of the command line.

    0   success
    1   failure that a retry may fix (disk full, lost rank)
    2   user error, such as an invalid option or path
    3   the training diverged
    75  stopped by a signal, with what there is to save saved (EX_TEMPFAIL: run the same command again)

A message is one line that says what happened, what was expected and how to fix it. It names arguments of functions and
keys of recipes in backquotes, with a value as in Python: `stop` is empty; use `format='text'`; set `training.steps`.
The command line spells them as its options (`hornbook.wording`), so no message outside of `hornbook.cli` has
an option. Tracebacks are shown only with ``--debug``.
"""

import signal
from typing import ClassVar, Final, Self


class HornbookError(Exception):
    """An operation failed, not because of the user; a retry may succeed."""

    exit_code: ClassVar[int] = 1


class StorageError(HornbookError):
    """A file could not be written or read: disk full, I/O error.

    Any function that reads or writes files may raise it; docstrings mention it only to add details.
    """


class PathError(StorageError):
    """A path does not exist, or its permissions forbid the operation, so a retry would fail as well."""

    exit_code: ClassVar[int] = 2


class UserError(HornbookError):
    """An argument or an input is invalid."""

    exit_code: ClassVar[int] = 2


class RecipeError(UserError):
    """A recipe or an override is invalid; ``problems`` lists all mistakes, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class DataError(UserError):
    """An input file is malformed; the message names the file and the position in it."""


class CheckpointError(UserError):
    """A checkpoint is damaged, or does not match the run."""


class NotFiniteError(HornbookError):
    """The outputs of a model are not finite: its training diverged, or they exceed a narrow dtype."""


class DivergedError(HornbookError):
    """The loss or the gradients stayed non-finite for too many steps in a row."""

    exit_code: ClassVar[int] = 3


class RankError(HornbookError):
    """One of several ranks failed, so all of them exit.

    Args:
        message: names the rank.
        exit_code: of every rank.
        is_reported: whether another process prints the message.
    """

    def __init__(self, message: str, exit_code: int, *, is_reported: bool = False) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]
        self.is_reported = is_reported


class StoppedBySignal(HornbookError):  # noqa: N818 - a stop is not an error, but is raised like one
    """A signal stopped the command; what it has saved is whole, and the same command resumes it."""

    exit_code: ClassVar[int] = 75


TERMINATING: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name))
"""The signals that end a command as `Terminated`, on systems that have them."""


class Terminated(BaseException):
    """SIGTERM, SIGUSR1 or SIGHUP arrived while nothing records it (see `hornbook.parallel.launched.leave_cleanly`).

    Like KeyboardInterrupt, it is no Exception: whoever continues after the error of one run, task or file must not take
    a signal for it.
    """

    exit_code: ClassVar[int] = StoppedBySignal.exit_code

    @classmethod
    def by(cls, number: int) -> Self:
        """Return the exception for a signal."""
        return cls(f"stopped by {signal.Signals(number).name}; run the same command again")
