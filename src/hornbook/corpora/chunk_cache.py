"""A bounded folder of chunks of remote files, named by their hashes and shared by any number of processes.

    chunks/3f/3fa94c...      the bytes whose SHA-256 is 3fa94c..., last used at its modification time

A chunk is written beside its place and renamed, and its hash is compared whenever it is read, so neither a killed
process nor a damaged disk can give wrong tokens. Each process counts what it adds; after a sixteenth of the limit, it
removes the chunks that were not used for the longest time. The price: several processes may together exceed the limit
by a sixteenth each, and each read costs a hash, about 50 us.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from hornbook.storage import make_directory, temporary_beside
from hornbook.storage.system import storage_errors, wait_for_lock

_PARTS: Final = 16


class ChunkCache:
    """See the module.

    Args:
        folder: of the chunks; created if missing.
        limit: bytes of all chunks together.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._added = limit  # what other processes left is counted before the first addition
        make_directory(folder)

    def get(self, digest: bytes) -> bytes | None:
        """Return the chunk with this SHA-256, marked as used now; None if it is missing or damaged."""
        path = self._path(digest)
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:  # removed by another process, or the disk failed: it is fetched again
            return None
        return data if hashlib.sha256(data).digest() == digest else None

    def put(self, digest: bytes, data: bytes) -> None:
        """Add a chunk, after making room if necessary."""
        if self._added + len(data) > self._limit // _PARTS:
            with wait_for_lock(self._folder / "lock"):
                self._shrink()
            self._added = 0
        path = self._path(digest)
        temporary = temporary_beside(path)
        try:
            with storage_errors("write", path, needed=len(data)):
                path.parent.mkdir(exist_ok=True)
                temporary.write_bytes(data)
                temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        self._added += len(data)

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        return self._folder / name[:2] / name

    def _shrink(self) -> None:
        """Remove the chunks used longest ago until a sixteenth of the limit is free."""
        found = []
        with storage_errors("read the folder", self._folder):
            for folder in self._folder.iterdir():
                for path in folder.iterdir() if folder.is_dir() else ():
                    with suppress(FileNotFoundError):
                        status = path.stat()
                        found.append((status.st_mtime_ns, status.st_size, path))
        excess = sum(size for _, size, _ in found) - (self._limit - self._limit // _PARTS)
        for _, size, path in sorted(found):
            if excess <= 0:
                break
            with storage_errors("remove", path):
                path.unlink(missing_ok=True)
            excess -= size
