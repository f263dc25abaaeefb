"""Durable files and locked folders: everything that hornbook keeps on a disk is written here.

    write_file(path, chunks)      create -> write ... write -> fsync           inside a folder that is not yet committed
    replace_file(path, data)      .name.tmp-123-9f3a61c2 -> fsync -> rename -> fsync parent    one file, atomically
    commit_directory(tmp, final)  fsync every folder -> rename -> fsync parent          many files, atomically
    Appender(path)                one line, one system call                             logs
    with lock_folder(folder):     a second process meets a UserError that names the first

An ``OSError`` becomes a ``StorageError`` of one line with the path and, on a full disk, the bytes needed and free.
A failed fsync is never retried: the kernel may have dropped the pages and would then report success (Rebello et al.,
"Can Applications Recover from fsync Failures?", 2020); the caller has to write again from scratch. A folder may come
from a stranger, so no file in it redirects a write: a new file is created exclusively, and a log that continues must be
a regular file with one name. Only a file that the user names is written through a link.

A lock is ``flock`` on ``folder/lock``, so the kernel takes it back however its holder dies; the file holds the holder's
number. It belongs to a file, not to its name, and the holder may remove the file: so it counts only if the name still
leads to the locked file, and else is taken anew. A forked child shares the lock until it ends, too.
"""

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

from hornbook.errors import PathError, StorageError, UserError
from hornbook.storage.system import (
    create_new,
    end_of_last_line,
    lock_file,
    open_own,
    perform,
    process_is_alive,
    storage_errors,
    sync,
    write_all,
)

BytesLike: TypeAlias = bytes | bytearray | memoryview
"""What a file takes; a contiguous numpy array is handed over as ``memoryview(array)``, without a copy."""

_LOCK: Final = "lock"
_ATTEMPTS: Final = 20
"""To lock a file that others remove; each time, one of them has to end within the same few microseconds."""
_ANY: Final = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY


@dataclass(frozen=True, kw_only=True)
class Written:
    """What became of a file: its size in bytes and the SHA-256 of its content, in hexadecimal."""

    size: int
    sha256: str


class FileWriter:
    """A file that grows piece by piece and is durable once the ``with`` block ends; an error inside removes it.

        with FileWriter(path) as writer:
            writer.write(b"...")
        writer.written  # Written(size=3, sha256="...")

    There is no buffer: hand over large pieces. A file or a link that is there already is removed first, so this is for
    folders that are not yet committed; elsewhere see ``replace_file``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hash = hashlib.sha256()
        self._size = 0
        with storage_errors("create", path):
            self._descriptor = perform("open", path, lambda: create_new(path))

    @property
    def written(self) -> Written:
        """Size and hash of what was handed over so far."""
        return Written(size=self._size, sha256=self._hash.hexdigest())

    def write(self, data: BytesLike) -> None:
        """Append all bytes of ``data``."""
        view = memoryview(data)
        if not view.nbytes:
            return
        with storage_errors("write", self.path, needed=view.nbytes):
            write_all(self.path, self._descriptor, view.cast("B"))
        self._hash.update(view)
        self._size += view.nbytes

    def finish(self) -> Written:
        """Wait until the content is on the disk, close, and return size and hash."""
        with storage_errors("write", self.path):
            sync(self.path, self._descriptor)
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
        return self.written

    def abandon(self) -> None:
        """Close and remove the file, as far as that is possible."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
        with suppress(StorageError):
            remove_file(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self.abandon()
            return
        try:
            self.finish()
        except BaseException:
            self.abandon()
            raise


class Appender:
    """A log that grows line by line; each line is one system call, so ``kill -9`` never tears one.

    A line that a power cut tore, or that did not fit on the disk, is removed, so that a reader meets whole lines.
    ``anew`` empties the file first, which may then be a link, a device or a pipe; otherwise each of these raises
    PathError.
    """

    def __init__(self, path: Path, *, anew: bool = False) -> None:
        self.path = path
        with storage_errors("open", path):
            if anew:
                self._descriptor = perform("open", path, lambda: os.open(path, _ANY, 0o666))
            else:
                self._descriptor = perform("open", path, lambda: open_own(path, os.O_APPEND))
                os.ftruncate(self._descriptor, end_of_last_line(self._descriptor))

    def append(self, line: str) -> None:
        """Hand one line, without its newline, to the operating system; after an error the file ends as before."""
        assert "\n" not in line, "a line holds no newline"
        data = line.encode() + b"\n"
        before = os.fstat(self._descriptor).st_size
        with storage_errors("append to", self.path, needed=len(data)):
            try:
                write_all(self.path, self._descriptor, memoryview(data))
            except OSError:
                with suppress(OSError):  # what a device or a pipe has taken, it keeps
                    os.ftruncate(self._descriptor, before)
                raise

    def sync(self) -> None:
        """Wait until all lines are on the disk; a device or a pipe has none."""
        with storage_errors("write", self.path):
            if stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                sync(self.path, self._descriptor)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def write_file(path: Path, data: BytesLike | Iterable[BytesLike]) -> Written:
    """Create a file, or replace what is there, wait until its content is on the disk, and return its size and hash.

    The folder's entry is made durable by whoever commits the folder. On an error the file is removed.
    """
    with FileWriter(path) as writer:
        for chunk in (data,) if isinstance(data, bytes | bytearray | memoryview) else data:
            writer.write(chunk)
    return writer.written


def replace_file(path: Path, data: BytesLike | Iterable[BytesLike]) -> Written:
    """Give ``path`` new content, durably and at once: readers, and crashes, meet the old content or the new."""
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
    """Return a new path in the folder of ``path`` that nobody can guess; it names this process."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")


def make_directory(path: Path, *, exist_ok: bool = True) -> None:
    """Create a folder and its missing parents, durably; one that is there already is fine unless told otherwise."""
    with storage_errors("create the folder", path):
        if exist_ok and path.is_dir():
            return
        missing = [parent for parent in path.parents if not parent.is_dir()]
    for folder in (*reversed(missing), path):
        with storage_errors("create the folder", folder):
            perform("open", folder, partial(folder.mkdir, exist_ok=exist_ok or folder != path))
        fsync_directory(folder.parent)


def fsync_directory(path: Path) -> None:
    """Wait until the entries of a folder (names that came, went or changed) are on the disk."""
    with storage_errors("write the folder", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync(path, descriptor)
        finally:
            os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename, atomically, and wait until that is on the disk; replaces a file at ``target``, never a filled folder."""
    with storage_errors(f"rename {source.name} to", target):
        perform("rename", target, lambda: source.rename(target))
    fsync_directory(target.parent)
    if source.parent != target.parent:
        fsync_directory(source.parent)


def commit_directory(temporary: Path, final: Path) -> None:
    """Give a folder of finished files its final name: the rename is the moment at which all of it exists."""
    if os.path.lexists(final):
        raise PathError(f"cannot create {final}: it exists already; remove it or choose another name")
    with storage_errors("read the folder", temporary):
        folders = [Path(folder) for folder, _, _ in os.walk(temporary, topdown=False, onerror=_raise)]
    for folder in folders:
        fsync_directory(folder)
    rename(temporary, final)


def remove_file(path: Path) -> None:
    """Remove a file or a link; none there is fine."""
    with storage_errors("remove", path), suppress(FileNotFoundError):
        perform("unlink", path, path.unlink)


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it (links themselves, never what they point to); none there is fine."""
    if not path.is_dir() or path.is_symlink():
        remove_file(path)
        return
    with storage_errors("read the folder", path):
        entries = sorted(path.iterdir())
    for entry in entries:
        remove_tree(entry)
    with storage_errors("remove the folder", path):
        perform("unlink", path, path.rmdir)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal; memory use is constant."""
    with storage_errors("read", path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def lock_folder(folder: Path) -> Iterator[Callable[[], None]]:
    """Hold the folder, which is created where missing, for the length of the block.

    Yields a function that raises StorageError if the folder or its lock file was moved or removed since. A block that
    raises before it adds anything leaves no trace. Raises UserError if another process holds the folder.
    """
    traces = _Traces(folder)
    descriptor = _lock(folder)

    def require() -> None:
        if not _is_still_there(folder / _LOCK, descriptor):
            raise StorageError(
                f"{folder} or its lock file was moved or removed while this process used it; move it back"
            )

    try:
        with suppress(OSError):  # on a full disk the lock holds without the number of its holder
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield require
    except BaseException:
        traces.remove()
        raise
    finally:
        os.close(descriptor)


def remove_locked_folder(folder: Path) -> None:
    """Remove a folder that this process holds, the lock after all else; if another has it by then, the folder stays."""
    if folder.is_symlink():
        remove_file(folder)  # never what it points to
        return
    with storage_errors("read the folder", folder):
        entries = sorted(entry for entry in folder.iterdir() if entry.name != _LOCK)
    for entry in entries:
        remove_tree(entry)
    remove_file(folder / _LOCK)
    with storage_errors("remove the folder", folder):
        try:
            perform("unlink", folder, folder.rmdir)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise


class _Traces:
    """What a folder was before it was locked, so that work that fails before it writes anything leaves no trace."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with storage_errors("create the folder", folder):  # its name may be too long
            self._missing = [path for path in (folder, *folder.parents) if not path.exists()]
        self._before = self._entries()

    def remove(self) -> None:
        """Remove the lock file and the folders that are new, unless there is more; to be called with the lock held."""
        if _LOCK in self._before or self._entries() != self._before | {_LOCK}:
            return
        with suppress(OSError):  # what cannot be removed stays; the error of the work counts
            perform("unlink", self._folder / _LOCK, (self._folder / _LOCK).unlink)
            for folder in self._missing:
                perform("unlink", folder, folder.rmdir)

    def _entries(self) -> set[str]:
        with storage_errors("read the folder", self._folder):
            return {path.name for path in self._folder.iterdir()} if self._folder.is_dir() else set()


def _remove_litter(path: Path) -> None:
    """Remove what killed processes left beside ``path`` when they were about to replace it."""
    pattern = re.compile(re.escape(f".{path.name}.tmp-") + r"(\d{1,10})(-[0-9a-f]{8})?")
    with suppress(OSError, StorageError):
        for entry in path.parent.iterdir():
            if (match := pattern.fullmatch(entry.name)) and not process_is_alive(int(match[1])):
                remove_file(entry)


def _raise(error: OSError) -> None:
    raise error


def _lock(folder: Path) -> int:
    """Return the descriptor of the folder's lock file, which this process holds and which nobody has removed."""
    for attempt in range(_ATTEMPTS):
        try:
            make_directory(folder)
            with storage_errors("open", folder / _LOCK):
                descriptor = open_own(folder / _LOCK)
        except PathError as error:
            may_have_gone = isinstance(error.__cause__, FileNotFoundError | FileExistsError)  # while it was made
            if may_have_gone and attempt + 1 < _ATTEMPTS:
                continue
            raise
        try:
            lock_file(descriptor)
            if _is_still_there(folder / _LOCK, descriptor):
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
