"""Removal of files and folders, which never leaves the folder that it was asked to remove.

    remove_tree(path)       each entry by descriptor, so that a link that is put in its place is not followed
    has_only_files(path)    what a removal by name has to require first: nothing but files of this user

A folder that contains the mount point of another file system is not touched: the data below it may be anybody's.
"""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from hornbook.errors import StorageError
from hornbook.storage.system import perform, storage_errors, unescaped

LOCK: Final = "lock"
"""Name of the lock file of a folder."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_file(path: Path) -> None:
    """Remove a file or a link, if it exists."""
    with storage_errors("remove", path), suppress(FileNotFoundError):
        perform("unlink", path, path.unlink)


def remove_tree(path: Path) -> None:
    """Remove a file or a folder with its content, if it exists; links are removed, not followed.

    Raises StorageError, before anything is removed, if another file system is mounted in the folder.
    """
    if not path.is_dir() or path.is_symlink():
        remove_file(path)
        return
    _refuse_mounts(path, mounts_below(path))
    with storage_errors("read the folder", path):
        descriptor = os.open(path, _FOLDER)
    try:
        _remove_entries(path, descriptor, keep=None)
    finally:
        os.close(descriptor)
    with storage_errors("remove the folder", path):
        perform("unlink", path, path.rmdir)


def remove_locked_folder(folder: Path) -> None:
    """Remove a folder that this process has locked, the lock file last, unless another process locks it meanwhile."""
    if folder.is_symlink():
        remove_file(folder)  # the link, not its target
        return
    _refuse_mounts(folder, mounts_below(folder))
    with storage_errors("read the folder", folder):
        descriptor = os.open(folder, _FOLDER)
    try:
        _remove_entries(folder, descriptor, keep=LOCK)
    finally:
        os.close(descriptor)
    remove_file(folder / LOCK)
    with storage_errors("remove the folder", folder):
        try:
            perform("unlink", folder, folder.rmdir)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise


def is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Return whether a path, not the target of a link, belongs to this user and has a mode of a kind: ``S_ISDIR``.

    The owner of the folder it is in counts as this user: some network file systems give all files to one owner.
    """
    try:
        status = path.lstat()
        return status.st_uid in (os.geteuid(), path.parent.stat().st_uid) and is_kind(status.st_mode)
    except OSError:
        return False


def has_only_files(folder: Path, is_expected: Callable[[str], bool] = bool) -> bool:
    """Return whether a folder and its entries belong to this user, and all are regular files with an expected name."""
    with storage_errors("read the folder", folder):
        return is_own(folder, stat.S_ISDIR) and all(
            is_own(path, stat.S_ISREG) and is_expected(path.name) for path in folder.iterdir()
        )


def _remove_entries(folder: Path, descriptor: int, keep: str | None) -> None:
    """Remove the entries of an open folder, ``folder`` in errors, but ``keep``."""
    with storage_errors("read the folder", folder):
        names, device = sorted(set(os.listdir(descriptor)) - {keep}), os.fstat(descriptor).st_dev
    for name in names:
        path = folder / name
        with storage_errors("remove", path), suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                perform("unlink", path, partial(os.unlink, name, dir_fd=descriptor))
                continue
            if status.st_dev != device:
                _refuse_mounts(path, [str(path)])
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
            try:
                _remove_entries(path, inner, keep=None)
            finally:
                os.close(inner)
            perform("unlink", path, partial(os.rmdir, name, dir_fd=descriptor))


def _refuse_mounts(folder: Path, mounts: list[str]) -> None:
    if mounts:
        raise StorageError(f"{folder} is not removed: another file system is mounted at {mounts[0]}; unmount it first")


def mounts_below(folder: Path, table: Path = Path("/proc/self/mountinfo")) -> list[str]:
    """Return the mount points at or below ``folder``; none on systems without such a table."""
    try:
        lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    target = folder.resolve()
    points = (unescaped(fields[4]) for line in lines if len(fields := line.split(" ")) > 4)
    return [point for point in points if Path(point).is_relative_to(target)]
