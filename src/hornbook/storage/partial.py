"""A file that takes several attempts: it grows under another name and gets its own when it is whole.

    .dump.bz2.partial/lock, .dump.bz2.partial/content      after each attempt a little longer
    dump.bz2                                               after the check, by one rename

The lock keeps a second process from adding to the same content. What an attempt has written stays for the next one,
also when the power fails: some of its end may be lost then, or be wrong, so the whole is to be checked before
``commit``. The price: nobody may count on its content before that.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hornbook.storage import faults
from hornbook.storage.files import rename
from hornbook.storage.lock import lock_folder, remove_locked_folder
from hornbook.storage.system import flush_to_disk, open_own, translated


class PartialFile:
    """What ``open_partial`` gives: content that can be added to, thrown away, or put in its place."""

    def __init__(self, final: Path, folder: Path) -> None:
        self.final, self.path, self._folder = final, folder / "content", folder
        with translated("open", self.path):
            self._descriptor = faults.perform("open", self.path, lambda: open_own(self.path, os.O_APPEND))

    @property
    def size(self) -> int:
        """Bytes that are there, those of former attempts included."""
        return os.fstat(self._descriptor).st_size

    def write(self, data: bytes) -> None:
        """Add to the end.

        Raises:
            StorageError: it did not fit, or the disk failed; what fitted stays.
        """
        view = memoryview(data)
        with translated("write", self.path, needed=len(view)):
            while view:
                view = view[faults.write(self.path, self._descriptor, view) :]

    def restart(self) -> None:
        """Throw away what is there.

        Raises:
            StorageError: the disk failed.
        """
        with translated("write", self.path):
            os.ftruncate(self._descriptor, 0)

    def commit(self) -> None:
        """Put the content in its place, durably; a file that is there is replaced.

        Raises:
            StorageError: the disk failed.
        """
        with translated("write", self.path):
            faults.perform("fsync", self.path, lambda: flush_to_disk(self._descriptor))
        rename(self.path, self.final)
        remove_locked_folder(self._folder)

    def close(self) -> None:
        """Close the file; the content stays."""
        os.close(self._descriptor)


@contextmanager
def open_partial(final: Path) -> Iterator[PartialFile]:
    """Hold what former attempts left of ``final``, or begin it.

    Raises:
        UserError: another process is at it.
        StorageError: it cannot be created.
    """
    folder = _folder_of(final)
    with lock_folder(folder):
        partial = PartialFile(final, folder)
        try:
            yield partial
        finally:
            partial.close()


def discard_partial(final: Path) -> None:
    """Throw away what attempts at ``final`` have left, as one does that dies after its rename; none there is fine.

    Raises:
        UserError: another process is at it.
        StorageError: the disk failed.
    """
    if (folder := _folder_of(final)).exists():
        with lock_folder(folder):
            remove_locked_folder(folder)


def _folder_of(final: Path) -> Path:
    return final.with_name(f".{final.name}.partial")
