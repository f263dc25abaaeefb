"""Every error that hornbook raises on purpose, with the exit code that the command line answers.

    0   done
    1   failed, but worth a retry (disk full, a rank died)
    2   the user's mistake, a path included: one line that says what happened, what was expected and how to mend it
    3   the training diverged
    75  stopped by a signal, with its state saved (EX_TEMPFAIL: run the same command again)

A message is one line. It is all that a user sees; the traceback appears with ``--debug`` alone.
"""

from typing import ClassVar


class HornbookError(Exception):
    """An operation failed through no fault of the user's; trying again may help."""

    exit_code: ClassVar[int] = 1


class StorageError(HornbookError):
    """A file could not be written or read: disk full, I/O error.

    Whatever reads or writes files may raise it; docstrings mention it only where they say more.
    """


class PathError(StorageError):
    """A path leads nowhere, or to what may not be read or written; another attempt would meet the same."""

    exit_code: ClassVar[int] = 2


class UserError(HornbookError):
    """The user asked for something that cannot be done as asked."""

    exit_code: ClassVar[int] = 2


class RecipeError(UserError):
    """A recipe, or an override on the command line, is wrong; ``problems`` lists all mistakes, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class DataError(UserError):
    """An input file is malformed; the message names the file and the place in it."""


class CheckpointError(UserError):
    """A checkpoint is damaged, or does not fit the run that asked for it."""


class DivergedError(HornbookError):
    """The loss or the gradients stayed non-finite for too many steps in a row."""

    exit_code: ClassVar[int] = 3


class RankError(HornbookError):
    """One of several ranks failed, and all leave because of it.

    Args:
        message: names the rank.
        exit_code: of every rank.
        is_told: another process prints the line, so that it appears once.
    """

    def __init__(self, message: str, exit_code: int, *, is_told: bool = False) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]
        self.is_told = is_told


class StoppedBySignal(HornbookError):  # noqa: N818 - a stop is no error, it only travels like one
    """A signal asked the run to stop; its state is saved and the same command goes on."""

    exit_code: ClassVar[int] = 75
