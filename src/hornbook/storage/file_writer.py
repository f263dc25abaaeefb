"""Write a new file piece by piece, hash what is written, and sync it; or several, beside each other.

::

    write a ..... write b ..... write c | await the sync of a, of b, of c     in this thread
         hash a ...... hash b ..... hash c                                    in a second one
             sync a .......... sync b ........ sync c                         in further ones

The writes of a `FileGroup`, and the points at which its syncs are awaited, have a fixed order, so each has a fault
point. A sync may end earlier than that, which changes nothing: none of the files counts before all are durable.
"""

import hashlib
import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias

from hornbook.errors import StorageError
from hornbook.storage.removal import remove_file
from hornbook.storage.system import create_new, flush_to_disk, perform, storage_errors, sync, write_all

BytesLike: TypeAlias = bytes | bytearray | memoryview
"""Data to write; pass a contiguous numpy array as ``memoryview(array)`` to avoid a copy."""
_UNHASHED: Final = 64 << 20
"""Bytes that may wait to be hashed."""
_SYNCED_AT: Final = 8 << 20
"""Bytes, so that the disk is busy while the rest of a file is written."""
_SYNCS_AT_ONCE: Final = 4
"""A file system with a journal commits those that wait at the same time together."""


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


class FileWriter(NewFile, AbstractContextManager["FileWriter"]):
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self.abandon()
            return
        try:
            with storage_errors("write", self.path):
                sync(self.path, self.descriptor)
                self.close()
        except BaseException:
            self.abandon()
            raise


class _File(NewFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.syncs: list[Future[None]] = []
        """The last one begins once all is written."""

    def await_syncs(self) -> None:
        """Raise the OSError of the first that failed: a later one may succeed without the bytes that were lost."""
        for each in self.syncs:
            each.result()


class FileGroup(AbstractContextManager["FileGroup"]):
    """A context manager that creates files in a folder; all are durable after the block, and removed by an error.

        with FileGroup(folder) as group:
            group.write("a", [b"..."])
            group.written()  # {"a": Written(size=3, sha256="...")}

    Existing files or links are removed first, so use it only in folders that are not yet committed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _File] = {}
        self._unhashed: deque[tuple[int, Future[None]]] = deque()
        self._num_unhashed = 0
        self._hasher = ThreadPoolExecutor(1, "hornbook-hash")
        self._syncer = ThreadPoolExecutor(_SYNCS_AT_ONCE, "hornbook-sync")

    def write(self, name: str, chunks: Iterable[BytesLike]) -> None:
        """Create a file; there is no buffer, so the chunks should be large. They must not change before ``written``."""
        file = self._files[name] = _File(self._folder / name)
        for chunk in chunks:
            view = file.append(chunk)
            self._unhashed.append((view.nbytes, self._hasher.submit(file.hash.update, view)))
            self._num_unhashed += view.nbytes
            self._wait_for_hashes(at_most=_UNHASHED)
            if file.size >= (1 + len(file.syncs)) * _SYNCED_AT:
                file.syncs.append(self._syncer.submit(flush_to_disk, file.descriptor))
        file.syncs.append(self._syncer.submit(flush_to_disk, file.descriptor))

    def written(self) -> dict[str, Written]:
        """Return the size and hash of each file, by name."""
        self._wait_for_hashes(at_most=0)
        return {name: file.written for name, file in self._files.items()}

    def _wait_for_hashes(self, at_most: int) -> None:
        """Wait until at most so many bytes are not hashed, since they stay in memory until then."""
        while self._num_unhashed > at_most:
            size, hashed = self._unhashed.popleft()
            hashed.result()
            self._num_unhashed -= size

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        is_durable = False
        try:
            if error is None:
                for file in self._files.values():
                    with storage_errors("write", file.path):
                        perform("fsync", file.path, file.await_syncs)
                is_durable = True
        finally:
            self._hasher.shutdown()
            self._syncer.shutdown()
            for file in self._files.values():
                if not is_durable:
                    file.abandon()
                with suppress(OSError):  # an error of its content was reported by its sync
                    file.close()
