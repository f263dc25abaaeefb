"""Durable files: atomic writes, hashes, locks, bounded decompression, and fault points for the tests.

Nothing else in hornbook writes what a run, a corpus or a checkpoint keeps. No torch, no numpy.
"""

from hornbook.storage.decompress import Limits, open_text_source
from hornbook.storage.files import (
    Appender,
    BytesLike,
    FileWriter,
    Written,
    append_line,
    commit_directory,
    dump_json,
    format_bytes,
    free_bytes,
    fsync_directory,
    make_directory,
    parse_json,
    read_bytes,
    read_json,
    remove_file,
    remove_tree,
    rename,
    replace_file,
    sha256_file,
    write_file,
)
from hornbook.storage.lock import lock_folder

__all__ = [
    "Appender",
    "BytesLike",
    "FileWriter",
    "Limits",
    "Written",
    "append_line",
    "commit_directory",
    "dump_json",
    "format_bytes",
    "free_bytes",
    "fsync_directory",
    "lock_folder",
    "make_directory",
    "open_text_source",
    "parse_json",
    "read_bytes",
    "read_json",
    "remove_file",
    "remove_tree",
    "rename",
    "replace_file",
    "sha256_file",
    "write_file",
]
