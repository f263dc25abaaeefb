"""Scratch: a large file for what a process computes with, as long as it lives; nothing in it is durable.

::

    scratch-00000/lock        held by the process; the system lets go of it when the process ends, however it ends
    scratch-00000/state       reserved in full at the start, read and written by pread and pwrite at fixed offsets

A process that is killed leaves its folder behind. Whoever starts next in the same place removes it.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hornbook.errors import StorageError, UserError
from hornbook.storage.files import lock_folder, remove_file, remove_locked_folder
from hornbook.storage.system import format_bytes, free_bytes, is_locked, open_own, storage_errors

_PREFIX: Final = "scratch-"
_MEND: Final = "choose another folder with --memory.scratch"


def scratch_path(base: Path, rank: int) -> Path:
    """Return the scratch folder of a rank inside ``base``."""
    return base / f"{_PREFIX}{rank:05d}"


def remove_leftovers(base: Path) -> None:
    """Remove the scratch folders in ``base`` that no living process holds; what cannot be removed stays."""
    for folder in sorted(base.glob(f"{_PREFIX}[0-9]*")):
        if folder.is_dir() and not folder.is_symlink() and not is_locked(folder):
            with suppress(StorageError, UserError), lock_folder(folder):
                remove_locked_folder(folder)


def require_scratch(base: Path, needed: int) -> None:
    """Raise StorageError if the disk of ``base`` has fewer than ``needed`` bytes free."""
    free = free_bytes(base)
    if free < needed:
        raise StorageError(
            f"phased execution needs {format_bytes(needed)} of scratch in {base}, which has {format_bytes(free)} free: "
            f"free some space, or {_MEND}"
        )


@contextmanager
def scratch_folder(folder: Path, needed: int) -> Iterator[Path]:
    """Hold a folder for scratch, empty at first, for the length of the block; it is removed on leaving.

    Args:
        folder: as ``scratch_path`` names it; what is in it goes.
        needed: bytes that will be written.

    Raises:
        UserError: another process holds the folder.
        StorageError: the disk has fewer bytes free, or the folder cannot be made.
    """
    with lock_folder(folder):
        try:
            for path in folder.iterdir():
                if path.name != "lock":
                    remove_file(path)
            require_scratch(folder.parent, needed)
            yield folder
        finally:
            with suppress(StorageError):
                remove_locked_folder(folder)


class ScratchFile:
    """A file that is read and written at offsets, from several threads at once.

    Attributes:
        num_read: bytes read so far.
        num_written: bytes written so far.
    """

    def __init__(self, path: Path) -> None:
        """Create the file, or empty it.

        Raises:
            StorageError: it cannot be made, or its file system lacks reads and writes at offsets, or mapped files.
        """
        self._path, self.size = path, 0
        self.num_read = self.num_written = 0
        with storage_errors("create", path):
            self._descriptor = open_own(path, os.O_TRUNC)
        self.reserve(mmap.PAGESIZE)
        self._refuse_unfit_disk()

    @classmethod
    def nameless(cls, folder: Path | str | None = None) -> "ScratchFile":
        """Return a file that goes with the process, in ``folder`` or the system's folder for temporary files."""
        with storage_errors("create scratch in", Path(folder or tempfile.gettempdir())):
            descriptor, path = tempfile.mkstemp(prefix=_PREFIX, dir=folder)
        os.close(descriptor)
        try:
            return cls(Path(path))
        finally:
            remove_file(Path(path))

    def _refuse_unfit_disk(self) -> None:
        probe, back = b"scratch!", bytearray(8)
        try:
            self.write(memoryview(probe), 8)
            self.read(memoryview(back), 8)
            with self.map() as view:
                reason = None if back == view[8:16] == probe else "what was written does not come back"
        except StorageError as error:
            reason = str(error.__cause__ or error)
        if reason is not None:
            told = f"the file system of {self._path.parent} cannot hold scratch, which needs pread, pwrite and mmap"
            raise StorageError(f"{told} ({reason}): {_MEND}")
        self.write(memoryview(bytes(8)), 8)
        self.num_read = self.num_written = 0

    def reserve(self, size: int) -> None:
        """Take room for ``size`` bytes in all, zeros where nothing was written; it never shrinks.

        Raises:
            StorageError: the disk is full.
        """
        if size <= self.size:
            return
        with storage_errors("reserve scratch in", self._path, size - self.size):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._descriptor, self.size, size - self.size)
            else:
                os.ftruncate(self._descriptor, size)
        self.size = size

    def read(self, into: memoryview, offset: int) -> None:
        """Fill ``into``, bytes, with what is at ``offset``. Raises StorageError if it cannot be read."""
        end = offset + len(into)
        with storage_errors("read", self._path):
            while offset < end:
                count = os.preadv(self._descriptor, [into[len(into) - (end - offset) :]], offset)
                if not count:
                    raise StorageError(f"{self._path} ends before byte {end:,}; it was changed while it was in use")
                offset += count
        self.num_read += len(into)

    def write(self, data: memoryview, offset: int) -> None:
        """Write ``data``, bytes, at ``offset``, inside of what is reserved. Raises StorageError if it cannot."""
        end = offset + len(data)
        with storage_errors("write", self._path):
            while offset < end:
                offset += os.pwrite(self._descriptor, data[len(data) - (end - offset) :], offset)
        self.num_written += len(data)

    def map(self) -> mmap.mmap:
        """Return what is reserved as memory, in which reads and writes at offsets show."""
        with storage_errors("map", self._path):
            return mmap.mmap(self._descriptor, self.size)

    def close(self) -> None:
        """Close the file; maps of it stay."""
        os.close(self._descriptor)
