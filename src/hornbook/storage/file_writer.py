"""Write a new file piece by piece, hash what is written, and sync it."""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from hornbook.errors import StorageError
from hornbook.storage.removal import remove_file
from hornbook.storage.system import create_new, perform, storage_errors, sync, write_all

BytesLike: TypeAlias = bytes | bytearray | memoryview
"""Data to write; pass a contiguous numpy array as ``memoryview(array)`` to avoid a copy."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """The size in bytes and the hexadecimal SHA-256 of a written file."""

    size: int
    sha256: str


class FileWriter:
    """A context manager that writes a file incrementally; it is durable after the block, and removed by an error.

        with FileWriter(path) as writer:
            writer.write(b"...")
        writer.written  # Written(size=3, sha256="...")

    There is no buffer, so write large pieces. An existing file or link is removed first, so use this only in folders
    that are not yet committed; elsewhere use ``replace_file``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hash = hashlib.sha256()
        self._size = 0
        with storage_errors("create", path):
            self._descriptor = perform("open", path, lambda: create_new(path))

    @property
    def written(self) -> Written:
        """Size and hash of the data written so far."""
        return Written(size=self._size, sha256=self._hash.hexdigest())

    def write(self, data: BytesLike) -> None:
        """Append ``data``."""
        view = memoryview(data)
        if not view.nbytes:
            return
        with storage_errors("write", self.path, needed=view.nbytes):
            write_all(self.path, self._descriptor, view.cast("B"))
        self._size += view.nbytes
        self._hash.update(view)

    def finish(self) -> Written:
        """Sync the content to disk, close the file, and return size and hash."""
        self._close()
        return self.written

    def _close(self) -> None:
        with storage_errors("write", self.path):
            sync(self.path, self._descriptor)
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def abandon(self) -> None:
        """Close and remove the file, ignoring errors."""
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
            self._close()
        except BaseException:
            self.abandon()
            raise
