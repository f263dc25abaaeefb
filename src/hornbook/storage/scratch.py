"""Scratch files: large files for the working data of a process, without durability.

::

    scratch-00000/lock        locked by the process; the system releases the lock however the process ends
    scratch-00000/state       fully reserved at the start, accessed with pread and pwrite at fixed offsets

A killed process leaves its folder behind; the next process that uses the same base folder removes it.
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
_REMEDY: Final = "choose another folder with `memory.scratch`"


def scratch_path(base: Path, rank: int) -> Path:
    """Return the scratch folder of a rank inside ``base``."""
    return base / f"{_PREFIX}{rank:05d}"


def remove_leftovers(base: Path) -> None:
    """Remove the scratch folders in ``base`` that no process has locked, ignoring errors."""
    for folder in sorted(base.glob(f"{_PREFIX}[0-9]*")):
        if folder.is_dir() and not folder.is_symlink() and not is_locked(folder):
            with suppress(StorageError, UserError), lock_folder(folder):
                remove_locked_folder(folder)


def require_scratch(base: Path, needed: int) -> None:
    """Raise StorageError if the disk of ``base`` has fewer than ``needed`` bytes free."""
    free = free_bytes(base)
    if free < needed:
        raise StorageError(
            f"phased execution needs {format_bytes(needed)} of scratch in {base}, which has {format_bytes(free)} free; "
            f"free some space, or {_REMEDY}"
        )


@contextmanager
def scratch_folder(folder: Path, needed: int) -> Iterator[Path]:
    """Lock an empty scratch folder for the duration of the block, and remove it afterwards.

    Args:
        folder: a path from ``scratch_path``; existing files in it are removed.
        needed: number of bytes that will be written.

    Raises:
        UserError: another process has locked the folder.
        StorageError: the disk has fewer bytes free, or the folder cannot be created.
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
    """A file that several threads read and write at offsets.

    Attributes:
        num_read: number of bytes read so far.
        num_written: number of bytes written so far.
    """

    def __init__(self, path: Path) -> None:
        """Create the file, or truncate an existing one.

        Raises:
            StorageError: it cannot be created, or its file system does not support pread, pwrite or mmap.
        """
        self._path, self.size = path, 0
        self.num_read = self.num_written = 0
        with storage_errors("create", path):
            self._descriptor = open_own(path, os.O_TRUNC)
        self.reserve(mmap.PAGESIZE)
        self._refuse_unfit_disk()

    @classmethod
    def nameless(cls, folder: Path | str | None = None) -> "ScratchFile":
        """Return a file without a name, so that it disappears with the process.

        ``folder`` is None for the system's folder for temporary files.
        """
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
                reason = None if back == view[8:16] == probe else "reading returns other data than was written"
        except StorageError as error:
            reason = str(error.__cause__ or error)
        if reason is not None:
            problem = f"the file system of {self._path.parent} lacks pread, pwrite or mmap, which scratch files need"
            raise StorageError(f"{problem} ({reason}); {_REMEDY}")
        self.write(memoryview(bytes(8)), 8)
        self.num_read = self.num_written = 0

    def reserve(self, size: int) -> None:
        """Reserve ``size`` bytes in total; new bytes are zero, and the file never shrinks.

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
        """Fill ``into``, bytes, with the data at ``offset``. Raises StorageError if it cannot be read."""
        end = offset + len(into)
        with storage_errors("read", self._path):
            while offset < end:
                count = os.preadv(self._descriptor, [into[len(into) - (end - offset) :]], offset)
                if not count:
                    raise StorageError(f"{self._path} ends before byte {end:,}: it was changed while it was in use")
                offset += count
        self.num_read += len(into)

    def write(self, data: memoryview, offset: int) -> None:
        """Write ``data``, bytes, at ``offset``, within the reserved size. Raises StorageError."""
        end = offset + len(data)
        with storage_errors("write", self._path):
            while offset < end:
                offset += os.pwrite(self._descriptor, data[len(data) - (end - offset) :], offset)
        self.num_written += len(data)

    def map(self) -> mmap.mmap:
        """Return the reserved bytes as a memory map, which is coherent with ``read`` and ``write``."""
        with storage_errors("map", self._path):
            return mmap.mmap(self._descriptor, self.size)

    def close(self) -> None:
        """Close the file; its memory maps remain valid."""
        os.close(self._descriptor)
