"""Write several new files, hashed and synced in threads beside the writes.

::

    write a ..... write b ..... write c | await the sync of a, of b, of c     in this thread
         hash a ...... hash b ..... hash c                                    in a second one
             sync a .......... sync b ........ sync c                         in further ones

Writes, and the points at which syncs are awaited, have a fixed order, so each has a fault point. A sync may end earlier
than that, which changes nothing: none of the files counts before all are durable.
"""

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from hornbook.storage.file_writer import BytesLike, NewFile, Written
from hornbook.storage.system import flush_to_disk, perform, storage_errors

_UNHASHED: Final = 64 << 20
"""Bytes that may wait to be hashed."""
_SYNCED_AT: Final = 8 << 20
"""Bytes, so that the disk is busy while the rest of a file is written."""
_SYNCS_AT_ONCE: Final = 4
"""A file system with a journal commits those that wait at the same time together."""


class _File(NewFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.syncs: list[Future[None]] = []
        """The last one begins once all is written."""

    def await_syncs(self) -> None:
        """Raise the OSError of the first that failed: a later one may succeed without the bytes that were lost."""
        for each in self.syncs:
            each.result()


class FileGroup:
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

    def __enter__(self) -> Self:
        return self

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
