"""Durable files: atomic writes, hashes, locks, bounded decompression, and fault points for tests.

All files of runs, corpora and checkpoints are written through this package, which imports neither torch nor numpy.
"""

import os

from hornbook.storage.decompress import Limits, open_text_source
from hornbook.storage.file_writer import BytesLike, FileGroup, FileWriter, Written
from hornbook.storage.files import (
    Appender,
    commit_directory,
    fsync_directory,
    lock_folder,
    lock_working_folder,
    make_directory,
    refuse_file,
    rename,
    replace_file,
    sha256_file,
    temporary_beside,
    write_file,
)
from hornbook.storage.removal import remove_file, remove_locked_folder, remove_tree

if os.environ.get("HORNBOOK_FAULT"):
    from hornbook.storage import faults as faults

__all__ = [
    "Appender",
    "BytesLike",
    "FileGroup",
    "FileWriter",
    "Limits",
    "Written",
    "commit_directory",
    "fsync_directory",
    "lock_folder",
    "lock_working_folder",
    "make_directory",
    "open_text_source",
    "refuse_file",
    "remove_file",
    "remove_locked_folder",
    "remove_tree",
    "rename",
    "replace_file",
    "sha256_file",
    "temporary_beside",
    "write_file",
]
