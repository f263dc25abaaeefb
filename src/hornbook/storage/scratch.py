"""Scratch files: large files without names for the working data of a process, without durability.

    file = ScratchFile(Path("/nvme"))     created without a name, or removed at once where the system needs one
    file.reserve(size)                    so that a full disk is reported at the start
    file.write(...), file.read(...)       pread and pwrite at fixed offsets

No name refers to the data, so other users cannot open it, and the system frees it however the process ends. Therefore
no start has to look for what a killed one left, and none can remove or follow anything of the user. The price: ``ls``
and ``du`` do not show the files; ``df`` does.
"""

import mmap
import os
import tempfile
import weakref
from functools import partial
from pathlib import Path
from typing import Final

from hornbook.errors import StorageError
from hornbook.storage.system import format_bytes, free_bytes, storage_errors

_REMEDY: Final = "choose another folder with `memory.scratch`"


def require_scratch(folder: Path, needed: int) -> None:
    """Raise StorageError if the disk of ``folder``, which need not exist, has fewer than ``needed`` bytes free."""
    free = free_bytes(folder)
    if free < needed:
        raise StorageError(
            f"phased execution needs {format_bytes(needed)} of scratch in {folder}, which has {format_bytes(free)} "
            f"free; free some space, or {_REMEDY}"
        )


class ScratchFile:
    """A file without a name that several threads read and write at offsets.

    Its space is free again once neither this object nor a map of it exists.

    Attributes:
        descriptor: the open file.
        size: number of reserved bytes.
        num_read: number of bytes read so far.
        num_written: number of bytes written so far.
        close: closes the file, if that is not to wait for the garbage collector; its memory maps remain valid.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Create an empty file in ``folder``, by default the system's for temporary files.

        Raises:
            StorageError: it cannot be created, or the file system does not support pread, pwrite or mmap of it.
        """
        self._folder = Path(tempfile.gettempdir()) if folder is None else folder
        self.size = self.num_read = self.num_written = 0
        create = partial(tempfile.TemporaryFile, prefix="hornbook-scratch-", dir=self._folder, buffering=0)
        with storage_errors("create scratch in", self._folder), create() as file:
            self.descriptor = os.dup(file.fileno())
        self.close = weakref.finalize(self, os.close, self.descriptor)
        self.reserve(mmap.PAGESIZE)
        self._refuse_unfit_disk()

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
            lacks = "lacks pread, pwrite or mmap of files without a name, which scratch files need"
            raise StorageError(f"the file system of {self._folder} {lacks} ({reason}); {_REMEDY}")
        self.write(memoryview(bytes(8)), 8)
        self.num_read = self.num_written = 0

    def reserve(self, size: int) -> None:
        """Reserve ``size`` bytes in total; new bytes are zero, and the file never shrinks.

        Raises:
            StorageError: the disk is full.
        """
        if size <= self.size:
            return
        with storage_errors("reserve scratch in", self._folder, size - self.size):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.descriptor, self.size, size - self.size)
            else:
                os.ftruncate(self.descriptor, size)
        self.size = size

    def read(self, into: memoryview, offset: int) -> None:
        """Fill ``into``, bytes, with the data at ``offset``. Raises StorageError if it cannot be read."""
        end = offset + len(into)
        with storage_errors("read scratch in", self._folder):
            while offset < end:
                count = os.preadv(self.descriptor, [into[len(into) - (end - offset) :]], offset)
                if not count:
                    raise StorageError(
                        f"the scratch file in {self._folder} ends before byte {end:,}: it was changed while it was in "
                        "use"
                    )
                offset += count
        self.num_read += len(into)

    def write(self, data: memoryview, offset: int) -> None:
        """Write ``data``, bytes, at ``offset``, within the reserved size. Raises StorageError."""
        end = offset + len(data)
        with storage_errors("write scratch in", self._folder):
            while offset < end:
                offset += os.pwrite(self.descriptor, data[len(data) - (end - offset) :], offset)
        self.num_written += len(data)

    def map(self) -> mmap.mmap:
        """Return the reserved bytes as a memory map, which is coherent with ``read`` and ``write``."""
        with storage_errors("map scratch in", self._folder):
            return mmap.mmap(self.descriptor, self.size)
