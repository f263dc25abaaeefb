"""Atomic creation of new folders, and files that are completed in several attempts.

    with new_folder(Path("out")) as folder:           folder is .out.converting/content, then renamed to out
        write_file(folder / "data", ...)

    .dump.bz2.partial/lock, .dump.bz2.partial/content      open_partial: grows with each attempt
    dump.bz2                                               after ``commit``, by one rename

An error inside ``new_folder`` removes what was written; the next conversion to the same path removes what a killed
process left. A partial file remains for the next attempt; after a power failure its end may be wrong, so verify the
whole file before ``commit``. Locks exclude other processes, and nothing is overwritten.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hornbook.errors import StorageError, UserError
from hornbook.storage import (
    commit_directory,
    lock_working_folder,
    make_directory,
    remove_locked_folder,
    remove_tree,
    rename,
)
from hornbook.storage.system import open_own, perform, storage_errors, sync, write_all


def refuse_existing(*paths: Path) -> None:
    """Raise UserError if one of the paths exists."""
    for path in paths:
        if os.path.lexists(path):
            raise UserError(f"{path} exists already; remove it, or choose another target")


@contextmanager
def working_folder(target: Path) -> Iterator[Path]:
    """Yield the path of a locked working folder beside ``target``, on the same file system, removed after the block.

    It may have files of a killed process. Raises UserError if another process holds the lock, or it is not hornbook's.
    """
    work = target.with_name(f".{target.name}.converting")
    with lock_working_folder(work):
        try:
            yield work / "content"
        finally:
            with suppress(StorageError):
                remove_locked_folder(work)


def make_empty(folder: Path) -> Path:
    """Create an empty folder, removing an existing one, and return its path."""
    remove_tree(folder)
    make_directory(folder)
    return folder


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder, committed as ``target`` after the block. Raises UserError if ``target`` exists."""
    refuse_existing(target)
    with working_folder(target) as work:
        folder = make_empty(work)
        yield folder
        commit_directory(folder, target)


def numeric_key(path: Path) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key that compares numbers in names numerically: ``data_2`` before ``data_10``."""
    words = re.split(r"(\d+)", path.name)
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words], path.name


class PartialFile:
    """A file that is written in several attempts; see ``open_partial``."""

    def __init__(self, final: Path, folder: Path) -> None:
        self.final, self.path, self._folder = final, folder / "content", folder
        with storage_errors("open", self.path):
            self._descriptor = perform("open", self.path, lambda: open_own(self.path, os.O_APPEND))

    @property
    def size(self) -> int:
        """Size in bytes, including earlier attempts."""
        return os.fstat(self._descriptor).st_size

    def write(self, data: bytes) -> None:
        """Append data. Raises StorageError if the disk is full or failing; the part that fit remains."""
        with storage_errors("write", self.path, needed=len(data)):
            write_all(self.path, self._descriptor, memoryview(data))

    def restart(self) -> None:
        """Discard the content."""
        with storage_errors("write", self.path):
            os.ftruncate(self._descriptor, 0)

    def commit(self) -> None:
        """Rename the content durably to its final name, replacing an existing file."""
        with storage_errors("write", self.path):
            sync(self.path, self._descriptor)
        rename(self.path, self.final)
        remove_locked_folder(self._folder)

    def close(self) -> None:
        """Close the file and keep its content."""
        os.close(self._descriptor)


@contextmanager
def open_partial(final: Path) -> Iterator[PartialFile]:
    """Yield the partial file of ``final``, with the content of earlier attempts.

    Raises UserError if another process is writing it.
    """
    folder = _folder_of(final)
    with lock_working_folder(folder):
        partial = PartialFile(final, folder)
        try:
            yield partial
        finally:
            partial.close()


def discard_partial(final: Path) -> None:
    """Remove the partial file of ``final``, if any. Raises UserError if another process is writing it."""
    if os.path.lexists(folder := _folder_of(final)):
        with lock_working_folder(folder):
            remove_locked_folder(folder)


def _folder_of(final: Path) -> Path:
    return final.with_name(f".{final.name}.partial")
