"""System calls for the other storage modules, their errors, and facts about the machine."""

import errno
import fcntl
import io
import os
import platform
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, Final, TypeVar

from hornbook.errors import DataError, PathError, StorageError

MOST_THREADS_PER_CORE: Final = 16
"""Of those that hornbook starts for one kind of work: thousands wait for each other, so that a step takes hours."""
TEMPORARY: Final = re.compile(r"\.(?P<name>.+)\.tmp-(?P<process>\d{1,10})-[0-9a-f]{8}", re.DOTALL)
"""The name of a file that will replace another one, with that one's name and the id of the process that writes it."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MISTAKEN: Final = (
    errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP,
    errno.EACCES, errno.EPERM, errno.EROFS,
)  # fmt: skip
"""Errors of a wrong path or missing permission, which the user must fix; also where Linux has made a file system
read-only after an I/O error, since no other attempt could write to it."""
_NEW: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
_NOT_FOR_THIS_FILE: Final = (errno.EINVAL, errno.ENOTTY, errno.ENOTSUP, errno.EOPNOTSUPP)


T = TypeVar("T")
fault_points: ModuleType | None = None
"""`hornbook.storage.faults`, if it was imported by a test or because of the variable ``HORNBOOK_FAULT``."""


@contextmanager
def storage_errors(verb: str, path: Path, needed: int | None = None) -> Iterator[None]:
    """Convert an ``OSError`` inside the block to an error of one line: "cannot ``verb`` ``path``: ...".

    Raises:
        PathError: the ``OSError`` says that the path is wrong or permission is missing.
        StorageError: any other ``OSError``; on a full disk, the message has the ``needed`` and the free bytes.
    """
    try:
        yield
    except OSError as error:
        raise as_storage_error(verb, path, error, needed) from error


def as_storage_error(verb: str, path: Path, error: OSError, needed: int | None = None) -> StorageError:
    """Return the error that ``storage_errors`` raises for an ``OSError``."""
    kind = PathError if error.errno in _MISTAKEN else StorageError
    if temporary := TEMPORARY.fullmatch(path.name):
        path = path.with_name(temporary["name"])
    reason, remedy = error.strerror or type(error).__name__, "check the path, its permissions and the disk"
    if error.errno == errno.ENOENT and not path.parent.exists():
        reason, remedy = f"there is no folder {path.parent}", "check the path, or create the folder"
    if error.errno == errno.EROFS:
        remedy = "choose another folder, or make the file system writable"
    if error.errno in _FULL:
        remedy = "free some space, or choose another folder"
        with suppress(OSError, StorageError):
            more = f"{format_bytes(needed)} more needed, " if needed else ""
            reason += f" ({more}{format_bytes(free_bytes(path))} free)"
    return kind(f"cannot {verb} {path}: {reason}; {remedy}")


def open_own(path: Path, flags: int = 0) -> int:
    """Open a file of a run for reading and writing, created if missing, and return its descriptor.

    Raises PathError for a link, a device, a pipe, or a file with several hard links, by which an untrusted folder could
    make this process write elsewhere. Raises OSError.
    """
    wrong = PathError(f"cannot open {path}: expected a regular file with one name, not a link or a device; remove it")
    try:
        descriptor = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise wrong from error
        raise
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:  # 0 if it has just been removed
        return descriptor
    os.close(descriptor)
    raise wrong


def open_regular(path: Path, *, follow: bool = True, buffering: int = io.DEFAULT_BUFFER_SIZE) -> io.BufferedReader:
    """Open a regular file for reading, without ever waiting for one that is something else, such as a named pipe.

    Args:
        path: path of the file.
        follow: whether it may be a link; files of a run may not, since a link could show any file of the reader's.
        buffering: size of the buffer in bytes.

    Raises:
        DataError: it is a pipe, a device, or a link that must not be followed.
        OSError: it is a folder, or cannot be opened.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if not follow and error.errno == errno.ELOOP:
            raise DataError(f"{path} is a link; expected a file of the run itself; replace it by a copy") from error
        if error.errno == errno.ENXIO:
            raise _irregular(path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return io.BufferedReader(io.FileIO(descriptor), buffering)
    os.close(descriptor)
    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) if stat.S_ISDIR(mode) else _irregular(path)


def read_at_most(stream: BinaryIO, limit: int) -> bytes:
    """Return the rest of a stream, at most ``limit`` bytes, without the buffer of that size that ``read`` allocates."""
    pieces, left = [], limit
    while left and (piece := stream.read(min(left, 1 << 20))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _irregular(path: Path) -> DataError:
    return DataError(f"{path} is not a regular file; expected neither a pipe nor a device; check the path")


def create_new(path: Path) -> int:
    """Open a new file for writing, replacing an existing file or link, and return its descriptor. Raises OSError."""
    try:
        return os.open(path, _NEW, 0o666)
    except FileExistsError:
        if not (path.is_symlink() or path.is_file()):
            raise
    path.unlink()
    return os.open(path, _NEW, 0o666)


def end_of_last_line(descriptor: int) -> int:
    """Return the offset after the last newline of a file, or 0."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - 65536)
        position = os.pread(descriptor, end - start, start).rfind(b"\n")
        if position >= 0:
            return start + position + 1
        end = start
    return 0


def free_bytes(path: Path) -> int:
    """Return the number of bytes available to this process on the file system of ``path``, which need not exist."""
    existing = existing_parent(path)
    with storage_errors("read", existing):
        status = os.statvfs(existing)
    return status.f_bavail * status.f_frsize


def require_space(folder: Path, needed: int) -> None:
    """Raise StorageError if the file system of ``folder`` has fewer than ``needed`` bytes free."""
    free = free_bytes(folder)
    if free < needed:
        raise StorageError(
            f"cannot save a checkpoint in {folder}: {format_bytes(needed)} needed, {format_bytes(free)} free; "
            "free some space, or choose another folder"
        )


def existing_parent(path: Path) -> Path:
    """Return the absolute ``path`` if it exists, else its nearest existing parent."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def format_bytes(size: float) -> str:
    """Return a human-readable size: ``512 B``, ``1.5 KiB``, ``2.0 GiB``."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def perform(name: str, path: Path, action: Callable[[], T]) -> T:
    """Run ``action``, the durable system call called ``name``, with a fault point. Raises OSError."""
    return action() if fault_points is None else fault_points.perform(name, path, action)


def write_all(path: Path, descriptor: int, view: memoryview) -> None:
    """Write all bytes to an open file, each system call with a fault point. Raises OSError."""
    while view:
        view = view[
            os.write(descriptor, view) if fault_points is None else fault_points.write(path, descriptor, view) :
        ]


def sync(path: Path, descriptor: int) -> None:
    """Sync an open file or folder to disk, with a fault point. Raises OSError."""
    perform("fsync", path, lambda: flush_to_disk(descriptor))


def flush_to_disk(descriptor: int) -> None:
    """Sync the content of a file, or the entries of a folder, so that they survive a power failure. Raises OSError.

    On macOS, ``fsync`` leaves data in the drive's cache, and ``F_FULLFSYNC`` flushes that, too (man page fsync(2)). On
    file systems without ``F_FULLFSYNC``, such as network ones, ``fsync`` is used.
    """
    full_fsync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_fsync is not None:
        try:
            fcntl.fcntl(descriptor, full_fsync)
            return
        except OSError as error:
            if error.errno not in _NOT_FOR_THIS_FILE:  # after an I/O error, fsync might report success
                raise
    os.fsync(descriptor)


def usable_cores() -> int:
    """Return the number of cores available to this process, at least 1: its CPU affinity, limited by ``cpu_quota``.

    A core with two hyperthreads counts twice.
    """
    may_run_on = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(may_run_on, cpu_quota())


def cpu_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the CPU quota of the container in whole cores, at least 1; without a quota, the cores of the machine."""
    everything = os.cpu_count() or 1
    try:
        quota, _, period = path.read_text(encoding="ascii").strip().partition(" ")
    except OSError:
        return everything
    return max(1, int(quota) // int(period)) if quota.isdecimal() and period.isdecimal() else everything


@cache
def cpu_facts(path: Path = Path("/proc/cpuinfo")) -> Mapping[str, str]:
    """Return the properties of the first processor in Linux' ``/proc/cpuinfo``; empty on other systems."""
    try:
        block = path.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def cpu_model() -> str:
    """Return the processor's name, or its architecture if unknown."""
    if sys.platform == "darwin":
        return output_of("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    return cpu_facts().get("model name") or platform.processor() or platform.machine() or "unknown"


@cache
def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the instruction sets that Linux reports, on Arm as "Features"; empty on other systems."""
    facts = cpu_facts(path)
    return frozenset((facts.get("flags") or facts.get("Features") or "").split())


def output_of(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a program's output; empty if it is missing, fails or takes longer than 5 s."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def unescaped(text: str) -> str:
    r"""Return a path of ``/proc/self/mountinfo`` with its escapes, such as ``\040`` for a space, resolved."""
    for code in ("\\040", "\\011", "\\012", "\\134"):
        text = text.replace(code, chr(int(code[1:], 8)))
    return text


def process_is_alive(pid: int) -> bool:
    """Return whether another process of this machine has the id ``pid``; False for the id of this process.

    A temporary file with this process's id that it did not create was left by a process that died: in a container,
    every run may have process id 1.
    """
    if pid == os.getpid() or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # alive, and someone else's
    return True


def lock_file(descriptor: int) -> None:
    """Lock an open file exclusively, after waiting up to 25 ms for processes that only test the lock (``is_locked``).

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file system does not support locks.
    """
    for wait in (0.005, 0.02):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(wait)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file, created if missing, during the block; wait while another process holds it."""
    with storage_errors("lock", path):
        descriptor = open_own(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except BaseException:
            os.close(descriptor)
            raise
    try:
        yield
    finally:
        os.close(descriptor)


def cache_home() -> Path:
    """Return the folder of this user's caches of hornbook. Raises RuntimeError if the home folder is unknown."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hornbook"


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder; False if the lock file cannot be opened."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
