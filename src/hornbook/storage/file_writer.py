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


class NewFile:
    """A file to which bytes are appended without a buffer; an existing file or link is removed first.

    Args:
        path: in a folder that is not yet committed.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.size, self.hash = path, 0, hashlib.sha256()
        with storage_errors("create", path):
            self.descriptor = perform("open", path, lambda: create_new(path))

    @property
    def written(self) -> Written:
        """Size and hash of the data written and hashed so far."""
        return Written(size=self.size, sha256=self.hash.hexdigest())

    def append(self, data: BytesLike) -> memoryview:
        """Append ``data`` and return a view of it, which the caller hashes."""
        view = memoryview(data)
        if view.nbytes:
            with storage_errors("write", self.path, needed=view.nbytes):
                write_all(self.path, self.descriptor, view.cast("B"))
            self.size += view.nbytes
        return view

    def close(self) -> None:
        """Close the file, once. Raises OSError."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def abandon(self) -> None:
        """Close and remove the file, ignoring errors."""
        with suppress(OSError):
            self.close()
        with suppress(StorageError):
            remove_file(self.path)


class FileWriter(NewFile):
    """A context manager that writes a file incrementally; it is durable after the block, and removed by an error.

        with FileWriter(path) as writer:
            writer.write(b"...")
        writer.written  # Written(size=3, sha256="...")

    There is no buffer, so write large pieces. Use it only in folders that are not yet committed; elsewhere use
    ``replace_file``.
    """

    def write(self, data: BytesLike) -> None:
        """Append ``data``."""
        self.hash.update(self.append(data))

    def finish(self) -> Written:
        """Sync the content to disk, close the file, and return size and hash."""
        with storage_errors("write", self.path):
            sync(self.path, self.descriptor)
            self.close()
        return self.written

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
