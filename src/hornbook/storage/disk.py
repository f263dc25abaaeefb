"""The file system of a folder, and its write and read speed.

file_system(Path("runs"))   FileSystem(kind="nfs4", mount="/home"), with is_network True
disk_speed(Path("runs"))    DiskSpeed(write=3.1e8, read=1.2e9), in bytes per second; leaves no file
"""

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hornbook.storage.system import existing_parent, flush_to_disk, storage_errors, unescaped

_NETWORK: Final = (
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs",
    "fuse.sshfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs", "virtiofs", "wekafs",
)  # fmt: skip
_CHUNK: Final = 1 << 22
_MOST_BYTES: Final = 1 << 25
_MOST_SECONDS: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """A file system: its type, as named by Linux, and its mount point."""

    kind: str
    mount: str

    @property
    def is_network(self) -> bool:
        """Whether the files are on another machine."""
        return self.kind in _NETWORK

    @property
    def is_memory(self) -> bool:
        """Whether the files are in memory and lost when the machine stops."""
        return self.kind in ("tmpfs", "ramfs")


@dataclass(frozen=True, kw_only=True)
class DiskSpeed:
    """Bytes per second, written with a final sync to disk, and read."""

    write: float
    read: float | None
    """None if the system cannot bypass its cache."""


def file_system(folder: Path, table: Path = Path("/proc/self/mountinfo")) -> FileSystem | None:
    """Return the file system of ``folder``, which need not exist; None on systems without such a table.

    The table has the format of Linux (man 5 proc): ``36 35 98:0 /root /mount options - kind source options``.
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
        mount = unescaped(fields[4])
        if target.is_relative_to(mount) and (found is None or len(mount) >= len(found.mount)):
            found = FileSystem(kind=after.split(" ")[0], mount=mount)
    return found


def disk_speed(folder: Path) -> DiskSpeed:
    """Measure the speed of a folder, or its nearest existing parent, with a file of at most 32 MiB in about 0.5 s.

    The file has no name if the system supports that, so that even a killed process leaves nothing behind.

    Raises:
        StorageError: the file cannot be written.
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
