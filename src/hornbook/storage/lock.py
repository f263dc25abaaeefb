"""One process per folder: a lock that the kernel takes back when its holder dies, however it dies.

    with lock_folder(run.folder):      # a second process meets a UserError that names the first
        train(...)

It is ``flock`` on ``folder/lock``; the file holds the holder's number for people to read and stays behind, since
removing it would let two processes lock two files of one name. The price: a forked child shares the lock until it
ends, too.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hornbook.errors import StorageError, UserError
from hornbook.storage.files import make_directory


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder, which is created where missing, for the length of the block.

    Raises:
        UserError: another process holds it.
        StorageError: the lock file cannot be created, or its file system knows no locks.
    """
    make_directory(folder)
    descriptor = _open(folder / "lock")
    try:
        _acquire(folder, descriptor)
        _sign(descriptor)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StorageError(f"cannot open {path}: {error.strerror}; check the folder and its permissions") from error


def _acquire(folder: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
        raise UserError(
            f"{folder} is in use by another process ({holder}); wait until it ends, stop it, or choose another folder"
        ) from error
    except OSError as error:
        raise StorageError(
            f"cannot lock {folder}: {error.strerror}; choose a folder on a file system that has locks"
        ) from error


def _sign(descriptor: int) -> None:
    """Write this process's number into the lock; on a full disk the lock holds without it."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
