"""Durable writes of files and folders, and locks of folders.

    write_file(path, chunks)      create -> write ... write -> fsync           inside a folder that is not yet committed
    replace_file(path, data)      .name.tmp-123-9f3a61c2 -> fsync -> rename -> fsync parent    one file, atomically
    commit_directory(tmp, final)  fsync every folder -> rename -> fsync parent          many files, atomically
    Appender(path)                one line, one system call                             logs
    with lock_folder(folder):     a second process gets a UserError that names the first

An ``OSError`` becomes a ``StorageError`` of one line with the path and, on a full disk, the bytes needed and free.
A failed fsync is never retried: the kernel may have dropped the pages and would then report success (Rebello et al.,
"Can Applications Recover from fsync Failures?", 2020); the caller must write again from scratch. A folder may come from
an untrusted source, so no file in it can redirect a write: a new file is created exclusively, and an existing log must
be a regular file with one hard link. Only a file named by the user is written through a link.

A lock is ``flock`` on ``folder/lock``, which has the holder's process id; the kernel releases it however the holder
dies. A holder may remove the file, so a lock is valid only while the name refers to the locked file. A fork shares it.
"""

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

from hornbook.errors import PathError, StorageError, UserError
from hornbook.storage.file_writer import BytesLike, FileWriter, Written
from hornbook.storage.removal import LOCK, is_own, remove_file
from hornbook.storage.system import (
    TEMPORARY,
    end_of_last_line,
    lock_file,
    open_own,
    open_regular,
    perform,
    process_is_alive,
    storage_errors,
    sync,
    write_all,
)

_HOLDER: Final = re.compile(rb"\d{0,10}\n?")
"""The content of a lock file: the process id of its last holder."""
_ATTEMPTS: Final = 20
"""Attempts to lock a file that others remove; an attempt fails only if one of them does so within microseconds."""
_ANY: Final = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY


class Appender(AbstractContextManager["Appender"]):
    """A log to which lines are appended, each with one system call, so that ``kill -9`` never leaves half a line.

    A line that is incomplete after a power failure or on a full disk is removed, so readers find only whole lines.

    Args:
        path: the file; a link, a device or a pipe raises PathError unless ``truncate``.
        truncate: truncate the file first; it may then also be a link, a device or a pipe.
    """

    def __init__(self, path: Path, *, truncate: bool = False) -> None:
        self.path = path
        with storage_errors("open", path):
            if truncate:
                self._descriptor = perform("open", path, lambda: os.open(path, _ANY, 0o666))
            else:
                self._descriptor = perform("open", path, lambda: open_own(path, os.O_APPEND))
                os.ftruncate(self._descriptor, end_of_last_line(self._descriptor))

    def append(self, line: str) -> None:
        """Write one line, given without its newline, to the operating system; an error leaves the file unchanged."""
        assert "\n" not in line, "a line has no newline"
        data = line.encode() + b"\n"
        before = os.fstat(self._descriptor).st_size
        with storage_errors("append to", self.path, needed=len(data)):
            try:
                write_all(self.path, self._descriptor, memoryview(data))
            except OSError:
                with suppress(OSError):  # a device or a pipe cannot be truncated
                    os.ftruncate(self._descriptor, before)
                raise

    def sync(self) -> None:
        """Sync all lines to disk; does nothing for a device or a pipe."""
        with storage_errors("write", self.path):
            if stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                sync(self.path, self._descriptor)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def write_file(path: Path, data: BytesLike | Iterable[BytesLike]) -> Written:
    """Create or replace a file, sync its content to disk, and return its size and hash.

    The entry in the folder becomes durable when the folder is committed. On an error the file is removed.
    """
    with FileWriter(path) as writer:
        for chunk in (data,) if isinstance(data, bytes | bytearray | memoryview) else data:
            writer.write(chunk)
    return writer.written


def replace_file(path: Path, data: BytesLike | Iterable[BytesLike]) -> Written:
    """Replace the content of ``path`` durably and atomically: readers, also after a crash, see the old or the new."""
    temporary = temporary_beside(path)
    written = write_file(temporary, data)
    try:
        rename(temporary, path)
    except StorageError:
        with suppress(StorageError):
            remove_file(temporary)
        raise
    _remove_litter(path)
    return written


def temporary_beside(path: Path) -> Path:
    """Return a new, unpredictable path in the folder of ``path``, with the id of this process."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")


def make_directory(path: Path, *, exist_ok: bool = True) -> None:
    """Create a folder and its missing parents durably. Raises PathError if it exists, unless ``exist_ok``."""
    with storage_errors("create the folder", path):
        if exist_ok and path.is_dir():
            return
        missing = [parent for parent in path.parents if not parent.is_dir()]
    for folder in (*reversed(missing), path):
        with storage_errors("create the folder", folder):
            perform("open", folder, partial(folder.mkdir, exist_ok=exist_ok or folder != path))
        fsync_directory(folder.parent)


def refuse_file(path: Path, *, writes: bool = False) -> None:
    """Raise PathError if a folder cannot be created because there is a file at its path or one of its parents.

    Args:
        path: of the folder.
        writes: whether to raise it also if this process must not create the folder, or write into it.
    """
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise PathError(f"{there} is a file: choose another `output`")
    if writes and not os.access(there, os.W_OK | os.X_OK):
        raise PathError(f"{there} is not writable: choose another `output`, or change its permissions or the mount")


def fsync_directory(path: Path) -> None:
    """Sync the entries of a folder (names added, removed or changed) to disk."""
    with storage_errors("write the folder", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync(path, descriptor)
        finally:
            os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename atomically and sync to disk; replaces a file at ``target``, but not a nonempty folder."""
    with storage_errors(f"rename {source.name} to", target):
        perform("rename", target, lambda: source.rename(target))
    fsync_directory(target.parent)
    if source.parent != target.parent:
        fsync_directory(source.parent)


def commit_directory(temporary: Path, final: Path) -> None:
    """Rename a folder of finished files, which makes them visible all at once. Raises PathError if ``final`` exists."""
    if os.path.lexists(final):
        raise PathError(f"cannot create {final}: it exists already; remove it, or choose another name")
    with storage_errors("read the folder", temporary):
        folders = [Path(folder) for folder, _, _ in os.walk(temporary, topdown=False, onerror=_raise)]
    for folder in folders:
        fsync_directory(folder)
    rename(temporary, final)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal; memory use is constant."""
    with storage_errors("read", path), open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def lock_folder(folder: Path) -> Iterator[Callable[[], None]]:
    """Lock a folder, created if missing, for the duration of the block.

    Yields a function that raises StorageError if the folder or its lock file has been moved or removed. If the block
    raises before it adds anything, new folders and lock files are removed. Raises UserError if the folder is locked.
    """
    traces = _Traces(folder)
    try:
        descriptor = _lock(folder)
    except StorageError:
        traces.remove_folders()
        raise

    def require() -> None:
        if not _is_still_there(folder / LOCK, descriptor):
            raise StorageError(
                f"{folder} or its lock file was moved or removed while this process was using it; move it back"
            )

    try:
        if not _HOLDER.fullmatch(os.pread(descriptor, 32, 0)):
            raise UserError(f"{folder / LOCK} is not a lock file of hornbook; move it, or choose another folder")
        with suppress(OSError):  # on a full disk, the lock is valid without the process id
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield require
    except BaseException:
        traces.remove()
        raise
    finally:
        os.close(descriptor)


@contextmanager
def lock_working_folder(folder: Path) -> Iterator[Callable[[], None]]:
    """Lock a folder that hornbook fills and removes by itself, such as ``.corpus.building``; see ``lock_folder``.

    Raises UserError also for a link, a folder of another user, and one with content but without a lock file, which is
    the first file that hornbook creates in such a folder.
    """
    if os.path.lexists(folder):
        with storage_errors("read the folder", folder):
            is_made_here = is_own(folder, stat.S_ISDIR) and (
                is_own(folder / LOCK, stat.S_ISREG) or not any(folder.iterdir())
            )
        if not is_made_here:
            raise UserError(
                f"{folder} was not made by hornbook for this user, so it is not used; move or remove it, or choose "
                "another target"
            )
    with lock_folder(folder) as require:
        fsync_directory(folder)  # after a power failure, what is written next must not be there without the lock file
        yield require


class _Traces:
    """The state of a folder before it was locked, to restore it if the block fails before it adds anything."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with storage_errors("create the folder", folder):  # its name may be too long
            self._missing = [path for path in (folder, *folder.parents) if not path.exists()]
        self._before = self._entries()

    def remove(self) -> None:
        """Remove a new lock file and new folders, unless something else was added; call it with the lock held."""
        if LOCK in self._before or self._entries() != self._before | {LOCK}:
            return
        with suppress(OSError):  # the error of the block is more important
            perform("unlink", self._folder / LOCK, (self._folder / LOCK).unlink)
            self.remove_folders()

    def remove_folders(self) -> None:
        """Remove those new folders that are empty."""
        for folder in self._missing:
            with suppress(OSError):
                perform("unlink", folder, folder.rmdir)

    def _entries(self) -> set[str]:
        with storage_errors("read the folder", self._folder):
            return {path.name for path in self._folder.iterdir()} if self._folder.is_dir() else set()


def _remove_litter(path: Path) -> None:
    """Remove the temporary files of ``replace_file`` that killed processes left beside ``path``."""
    with suppress(OSError, StorageError):
        for entry in path.parent.iterdir():
            match = TEMPORARY.fullmatch(entry.name)
            if match is None or match["name"] != path.name or process_is_alive(int(match["process"])):
                continue
            if is_own(entry, stat.S_ISREG):
                remove_file(entry)


def _raise(error: OSError) -> None:
    raise error


def _lock(folder: Path) -> int:
    """Lock the folder's lock file and return its descriptor. Raises UserError if another process holds the lock."""
    for attempt in range(_ATTEMPTS):
        try:
            make_directory(folder)
            with storage_errors("open", folder / LOCK):
                descriptor = perform("open", folder / LOCK, lambda: open_own(folder / LOCK))
        except PathError as error:
            is_race = isinstance(error.__cause__, FileNotFoundError | FileExistsError)  # another process removed it
            if is_race and attempt + 1 < _ATTEMPTS:
                continue
            raise
        try:
            lock_file(descriptor)
            if _is_still_there(folder / LOCK, descriptor):
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
                f"cannot lock {folder}: {error.strerror}; choose a folder on a file system that supports locks"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise StorageError(f"cannot lock {folder}: other processes keep removing it; try again after they have ended")


def _is_still_there(path: Path, descriptor: int) -> bool:
    """Return whether the path refers to the open file."""
    with storage_errors("read", path):
        try:
            return os.path.samestat(os.fstat(descriptor), path.stat())
        except FileNotFoundError:
            return False
