"""New files and folders of a conversion: they appear when all of them is on the disk, and nothing is overwritten.

    with new_folder(Path("out")) as folder:      folder is .out.converting/content; a rename makes it out
        write_file(folder / "data", ...)

An error inside the block removes what was written. The price: a folder that a killed process left is found, and
cleared, by the next conversion to the same place only.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hornbook.errors import StorageError, UserError
from hornbook.storage import commit_directory, lock_folder, make_directory, remove_locked_folder, remove_tree


def refuse_existing(*paths: Path) -> None:
    """Raise UserError if one of the paths is there already."""
    for path in paths:
        if os.path.lexists(path):
            raise UserError(f"{path} exists already; remove it, or choose another target")


@contextmanager
def working_folder(target: Path) -> Iterator[Path]:
    """Yield the path of a folder beside ``target``, on its file system; one process at a time has it.

    It may hold what a process left that was killed. After the block it is gone.

    Raises:
        UserError: another process has it.
        StorageError: it cannot be made.
    """
    work = target.with_name(f".{target.name}.converting")
    with lock_folder(work):
        try:
            yield work / "content"
        finally:
            with suppress(StorageError):
                remove_locked_folder(work)


def make_empty(folder: Path) -> Path:
    """Make a folder with nothing in it, and return its path.

    Raises:
        StorageError: what was in it cannot be removed, or the folder not be made.
    """
    remove_tree(folder)
    make_directory(folder)
    return folder


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to fill, which is committed as ``target`` when the block ends without an error.

    Raises:
        UserError: ``target`` is there already, or another process is about to write it.
        StorageError: the disk failed.
    """
    refuse_existing(target)
    with working_folder(target) as work:
        folder = make_empty(work)
        yield folder
        commit_directory(folder, target)


def numeric_key(path: Path) -> tuple[list[tuple[int, str]], str]:
    """Return a key that sorts names by their numbers: ``data_2`` before ``data_10``."""
    words = re.split(r"(\d+)", path.name)
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words], path.name
