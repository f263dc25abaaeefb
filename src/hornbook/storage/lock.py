"""One process per folder: a lock that the kernel takes back when its holder dies, however it dies.

    with lock_folder(run.folder):      # a second process meets a UserError that names the first
        train(...)

    with lock_folder(work):            # a folder that ends with its work
        ...
        remove_locked_folder(work)

It is ``flock`` on ``folder/lock``; the file holds the holder's number for people to read. A lock belongs to a file, not
to its name, and the holder may remove the file: so a lock counts only if the name still leads to the locked file, and
else is taken anew. A forked child shares the lock until it ends, too.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hornbook.errors import PathError, StorageError, UserError
from hornbook.storage import faults
from hornbook.storage.files import make_directory, remove_file, remove_tree
from hornbook.storage.system import open_own, storage_errors

_NAME: Final = "lock"
_ATTEMPTS: Final = 20
"""To lock a file that others remove; each time, one of them has to end within the same few microseconds."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[Callable[[], None]]:
    """Hold the folder, which is created where missing, for the length of the block.

    If the block raises and has added nothing to the folder, the lock file goes, and with it every folder made for it.

    Yields a function that raises StorageError if the folder was moved or removed since, or only its lock file: what
    this process then writes to ``folder`` would go elsewhere. Raises UserError if another process holds the folder.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    before = _entries(folder)
    descriptor = _lock(folder)

    def require() -> None:
        if not _is_still_there(folder / _NAME, descriptor):
            raise StorageError(
                f"{folder} or its lock file was moved or removed while this process used it; move it back"
            )

    try:
        with suppress(OSError):  # on a full disk the lock holds without the number of its holder
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield require
    except BaseException:
        if _entries(folder) == before | {_NAME} != before:
            with suppress(StorageError):
                remove_file(folder / _NAME)
                for path in made:
                    _remove_if_empty(path)
        raise
    finally:
        os.close(descriptor)


def remove_locked_folder(folder: Path) -> None:
    """Remove a folder that this process holds, the lock after all else; if another has it by then, the folder stays."""
    if folder.is_symlink():
        remove_file(folder)  # never what it points to
        return
    with storage_errors("read the folder", folder):
        entries = sorted(entry for entry in folder.iterdir() if entry.name != _NAME)
    for entry in entries:
        remove_tree(entry)
    remove_file(folder / _NAME)
    _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    with storage_errors("remove the folder", folder):
        try:
            faults.perform("unlink", folder, folder.rmdir)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise


def _entries(folder: Path) -> set[str]:
    with storage_errors("read the folder", folder):
        return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()


def _lock(folder: Path) -> int:
    """Return the descriptor of the folder's lock file, which this process holds and which nobody has removed."""
    for attempt in range(_ATTEMPTS):
        try:
            make_directory(folder)
            with storage_errors("open", folder / _NAME):
                descriptor = open_own(folder / _NAME)
        except PathError as error:
            may_have_gone = isinstance(error.__cause__, FileNotFoundError | FileExistsError)  # while it was made
            if may_have_gone and attempt + 1 < _ATTEMPTS:
                continue
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still_there(folder / _NAME, descriptor):
                return descriptor
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise UserError(
                f"{folder} is in use by another process ({holder}); wait until it ends, stop it, or choose another "
                "folder"
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise StorageError(
                f"cannot lock {folder}: {error.strerror}; choose a folder on a file system that has locks"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise StorageError(f"cannot lock {folder}: other processes keep removing it; try again when they have ended")


def _is_still_there(path: Path, descriptor: int) -> bool:
    """Tell whether the open file is the one that the path leads to."""
    with storage_errors("read", path):
        try:
            return os.path.samestat(os.fstat(descriptor), path.stat())
        except FileNotFoundError:
            return False
