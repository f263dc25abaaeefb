"""New files and folders: they get their names when all of them is on the disk, and no conversion overwrites anything.

    with new_folder(Path("out")) as folder:           folder is .out.converting/content; a rename makes it out
        write_file(folder / "data", ...)

    .dump.bz2.partial/lock, .dump.bz2.partial/content      open_partial: after each attempt a little longer
    dump.bz2                                               after ``commit``, by one rename

An error inside ``new_folder`` removes what was written; what a killed process left is cleared by the next conversion to
the same path. A partial file stays for the next attempt; after a power cut its end may be wrong, so check the whole
before ``commit``. Locks keep a second process out.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hornbook.errors import StorageError, UserError
from hornbook.storage import (
    commit_directory,
    lock_folder,
    make_directory,
    remove_locked_folder,
    remove_tree,
    rename,
)
from hornbook.storage.system import open_own, perform, storage_errors, sync, write_all


def refuse_existing(*paths: Path) -> None:
    """Raise UserError if one of the paths is there already."""
    for path in paths:
        if os.path.lexists(path):
            raise UserError(f"{path} exists already; remove it, or choose another target")


@contextmanager
def working_folder(target: Path) -> Iterator[Path]:
    """Yield the path of a folder beside ``target``, on its file system; one process at a time has it.

    It may hold what a killed process left. After the block it is gone. Raises UserError if another process has it.
    """
    work = target.with_name(f".{target.name}.converting")
    with lock_folder(work):
        try:
            yield work / "content"
        finally:
            with suppress(StorageError):
                remove_locked_folder(work)


def make_empty(folder: Path) -> Path:
    """Make a folder with nothing in it, and return its path."""
    remove_tree(folder)
    make_directory(folder)
    return folder


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to fill, committed as ``target`` after the block. Raises UserError if ``target`` is taken."""
    refuse_existing(target)
    with working_folder(target) as work:
        folder = make_empty(work)
        yield folder
        commit_directory(folder, target)


def numeric_key(path: Path) -> tuple[list[tuple[int, str]], str]:
    """Return a key that sorts names by their numbers: ``data_2`` before ``data_10``."""
    words = re.split(r"(\d+)", path.name)
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words], path.name


class PartialFile:
    """Content that can be added to, thrown away, or given its final name; see ``open_partial``."""

    def __init__(self, final: Path, folder: Path) -> None:
        self.final, self.path, self._folder = final, folder / "content", folder
        with storage_errors("open", self.path):
            self._descriptor = perform("open", self.path, lambda: open_own(self.path, os.O_APPEND))

    @property
    def size(self) -> int:
        """Bytes that are there, those of former attempts included."""
        return os.fstat(self._descriptor).st_size

    def write(self, data: bytes) -> None:
        """Add to the end. Raises StorageError if it did not fit, or the disk failed; what fitted stays."""
        with storage_errors("write", self.path, needed=len(data)):
            write_all(self.path, self._descriptor, memoryview(data))

    def restart(self) -> None:
        """Throw away what is there."""
        with storage_errors("write", self.path):
            os.ftruncate(self._descriptor, 0)

    def commit(self) -> None:
        """Give the content its final name, durably; a file that is there is replaced."""
        with storage_errors("write", self.path):
            sync(self.path, self._descriptor)
        rename(self.path, self.final)
        remove_locked_folder(self._folder)

    def close(self) -> None:
        """Close the file; the content stays."""
        os.close(self._descriptor)


@contextmanager
def open_partial(final: Path) -> Iterator[PartialFile]:
    """Yield what former attempts left of ``final``, or a new one. Raises UserError if another process is at it."""
    folder = _folder_of(final)
    with lock_folder(folder):
        partial = PartialFile(final, folder)
        try:
            yield partial
        finally:
            partial.close()


def discard_partial(final: Path) -> None:
    """Remove what attempts at ``final`` have left, if anything. Raises UserError if another process is at it."""
    if (folder := _folder_of(final)).exists():
        with lock_folder(folder):
            remove_locked_folder(folder)


def _folder_of(final: Path) -> Path:
    return final.with_name(f".{final.name}.partial")
