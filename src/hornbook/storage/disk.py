"""The disk below a folder: its file system, and how fast a file is written and read there.

file_system(Path("runs"))   FileSystem(kind="nfs4", mount="/home", is_network=True)
disk_speed(Path("runs"))    DiskSpeed(write=3.1e8, read=1.2e9), and the file is gone
"""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hornbook.storage.system import existing_parent, flush_to_disk, storage_errors

_NETWORK: Final = (
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs",
    "fuse.sshfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs", "virtiofs", "wekafs",
)  # fmt: skip
_CHUNK: Final = 1 << 22
_MOST_BYTES: Final = 1 << 25
_MOST_SECONDS: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """Where a folder lies: the kind of its file system, as Linux names it, and where that is mounted."""

    kind: str
    mount: str

    @property
    def is_network(self) -> bool:
        """Whether the files lie on another machine."""
        return self.kind in _NETWORK

    @property
    def is_memory(self) -> bool:
        """Whether the files lie in memory, and are gone when the machine stops."""
        return self.kind in ("tmpfs", "ramfs")


@dataclass(frozen=True, kw_only=True)
class DiskSpeed:
    """Bytes a second, written until they would survive a power cut, and read back."""

    write: float
    read: float | None
    """None where the system offers no way to read past its cache."""


def file_system(folder: Path, table: Path = Path("/proc/self/mountinfo")) -> FileSystem | None:
    """Return the file system that holds, or will hold, ``folder``; None where the system has no such table.

    The format is that of Linux (man 5 proc): ``36 35 98:0 /root /mount options - kind source options``.
    """
    try:
        lines = table.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    target, found = existing_parent(folder).resolve(), None
    for line in lines:
        before, _, after = line.partition(" - ")
        if len(fields := before.split(" ")) < 5 or not after:
            continue
        mount = _unescaped(fields[4])
        if target.is_relative_to(mount) and (found is None or len(mount) >= len(found.mount)):
            found = FileSystem(kind=after.split(" ")[0], mount=mount)
    return found


def disk_speed(folder: Path) -> DiskSpeed:
    """Write and read a file of at most 32 MiB, for about half a second, in a folder or the nearest one above it.

    The file has no name where the system allows that, so that not even a killed process leaves it behind.

    Raises:
        StorageError: it cannot be written.
    """
    existing, chunk = existing_parent(folder), os.urandom(_CHUNK)
    with storage_errors("write to", existing, _MOST_BYTES), tempfile.TemporaryFile(dir=existing, buffering=0) as file:
        start, size = time.perf_counter(), 0
        while size < _MOST_BYTES and time.perf_counter() - start < _MOST_SECONDS:
            size += file.write(chunk)
        flush_to_disk(file.fileno())
        written = time.perf_counter() - start
        if not hasattr(os, "posix_fadvise"):
            return DiskSpeed(write=size / written, read=None)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        start = time.perf_counter()
        while file.read(_CHUNK):
            pass
        return DiskSpeed(write=size / written, read=size / (time.perf_counter() - start))


def _unescaped(text: str) -> str:
    r"""Return a path of the table with its escapes, such as ``\040`` for a space, replaced."""
    for code in ("\\040", "\\011", "\\012", "\\134"):
        text = text.replace(code, chr(int(code[1:], 8)))
    return text
