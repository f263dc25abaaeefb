"""What the other storage modules ask the operating system, and how they tell of its refusals."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hornbook.errors import StorageError

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def translated(verb: str, path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn an ``OSError`` inside the block into one line: "cannot ``verb`` ``path``: ...".

    Raises:
        StorageError: the block raised an ``OSError``; on a full disk it tells the ``needed`` and the free bytes.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(_explain(verb, path, error, needed)) from error


def _explain(verb: str, path: Path, error: OSError, needed: int | None) -> str:
    reason = error.strerror or type(error).__name__
    if error.errno not in _FULL:
        return f"cannot {verb} {path}: {reason}; check the path, its permissions and the disk"
    with suppress(OSError, StorageError):
        reason += f" ({format_bytes(needed) + ' more needed, ' if needed else ''}{format_bytes(free_bytes(path))} free)"
    return f"cannot {verb} {path}: {reason}; free some space or choose another folder"


def free_bytes(path: Path) -> int:
    """Return the bytes that this process may still write to the disk which holds, or will hold, ``path``.

    Raises:
        StorageError: the disk cannot be asked.
    """
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    with translated("read", existing):
        status = os.statvfs(existing)
    return status.f_bavail * status.f_frsize


def format_bytes(size: int) -> str:
    """Return a size for people: ``512 B``, ``1.5 KiB``, ``2.0 GiB``."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def process_is_alive(pid: int) -> bool:
    """Tell whether a process of this machine has the number ``pid``; its own number counts as dead.

    What carries this process's own number and is not its doing was left by one that died: in a container, every run
    may be process 1.
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
