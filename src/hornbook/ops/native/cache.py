"""The folders of builds of the native library, and whether a build in them may be loaded.

    <cache>/<sources and ABI>/libhornbook.so             written to disk, then renamed to this name
                              libhornbook.so.sha256      its hash, checked once per process before it is loaded
                              forms.json                 the forms that it lacks, see `hornbook.ops.native.build`
                              lock                       of the process that compiles
                              compiling-9f3a61c2d04be517/    its objects; the next one removes those of a killed one
                              seconds.json               see `hornbook.ops.native.trials`

Code that another user can change must not be loaded, and a library that was cut off would end the process with SIGBUS.
So library and hash must belong to this user, root, or the owner of hornbook's own code, and only the owner may write to
them and to their folders. The price: a folder above them that every user can change (without the sticky bit) is an
error, although it may be harmless on a machine with one user.
"""

import _ctypes
import ctypes
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hornbook.errors import StorageError
from hornbook.storage.files import fsync_directory, make_directory, rename, sha256_file, write_file
from hornbook.storage.removal import remove_tree
from hornbook.storage.system import cache_home, flush_to_disk, storage_errors

LIBRARY: Final = "libhornbook.so"
"""File name of the library in the folder of a build."""
FORMS: Final = "forms.json"
"""File name of the record of its forms."""
_HASH: Final = f"{LIBRARY}.sha256"
_COMPILING: Final = re.compile(r"compiling-[0-9a-f]{16}")
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_NUM_OWN_FOLDERS: Final = 3
"""``hornbook``, ``native`` and the folder of a build."""


class BuildError(Exception):
    """The library cannot be built on this machine; the message is a short reason."""


def default_cache() -> Path:
    """Return the folder of all builds of this user.

    Raises:
        BuildError: there is neither ``XDG_CACHE_HOME`` nor a home folder.
    """
    try:
        return cache_home() / "native"
    except RuntimeError as error:  # HOME is not set, and the user is not in the system's list
        raise BuildError("the home folder is unknown; set XDG_CACHE_HOME to a folder for compiled operators") from error


def find_flaw(library: Path, *, installed: bool = False) -> str | None:
    """Return why a build must not be used; None if it is complete, loads, and no other user can have written it.

    ``installed`` is for a build among hornbook's own code; whoever may write to that is trusted anyway.
    """
    code = Path(__file__).stat()
    trusted, others = {os.geteuid(), 0, code.st_uid}, _OTHERS & ~code.st_mode if installed else _OTHERS
    try:
        for path in (library, library.with_name(_HASH)):
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                return f"{path} is not a file"
            if status.st_uid not in trusted or status.st_mode & others:
                return f"another user may have written {path}"
        said = library.with_name(_HASH).read_text("ascii", "replace").strip()
        is_whole = sha256_file(library) == said
    except (OSError, StorageError) as error:
        return f"{library} or its hash cannot be read ({error})"
    if not is_whole:
        return f"{library} is damaged: its SHA-256 is not that of its build"
    try:
        _ctypes.dlclose(ctypes.CDLL(str(library))._handle)  # else another build of this name would not be loaded later
    except OSError as error:  # built on a machine with a newer C library
        return f"it cannot be loaded: {error}"
    return None


def make_private(folder: Path) -> None:
    """Create the folder of a build and those above it, and let only their owner write to hornbook's own.

    Raises:
        BuildError: another user could replace what is in the folder.
        StorageError: a folder cannot be created.
    """
    path = folder.absolute()
    own = [path, *path.parents][:_NUM_OWN_FOLDERS]
    make_directory(own[-1].parent)
    for each in reversed(own):
        with storage_errors("create the folder", each):
            try:
                each.mkdir(mode=0o700)
            except FileExistsError:
                _tighten(each)
                continue
        fsync_directory(each.parent)
    for parent in sorted({*own[-1].resolve().parents, *path.resolve().parents}):  # differ if a folder is a link
        with storage_errors("read the folder", parent):
            mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise BuildError(f"every user can replace what is in {parent}; set XDG_CACHE_HOME to a folder of your own")


def _tighten(folder: Path) -> None:
    """Take the permission to write to a folder from all but its owner. Raises BuildError, OSError."""
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise BuildError(f"{folder} is not a folder; remove it, or set XDG_CACHE_HOME")
    if status.st_uid not in {os.geteuid(), 0, Path(__file__).stat().st_uid}:
        raise BuildError(f"{folder} belongs to another user; set XDG_CACHE_HOME to a folder of your own")
    if status.st_mode & _OTHERS and status.st_uid == os.geteuid():
        folder.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
        status = folder.stat()
    if status.st_mode & _OTHERS:
        raise BuildError(f"other users can write to {folder}; set XDG_CACHE_HOME to a folder of your own")


@contextmanager
def compiling_in(folder: Path) -> Iterator[Path]:
    """Yield a new folder in the locked folder of a build, removed after the block with those of killed processes."""
    with storage_errors("read the folder", folder):
        left = [path for path in sorted(folder.iterdir()) if _COMPILING.fullmatch(path.name)]
    for path in left:
        remove_tree(path)
    work = folder / f"compiling-{secrets.token_hex(8)}"
    with storage_errors("create the folder", work):
        work.mkdir(mode=0o700)
    try:
        yield work
    finally:
        remove_tree(work)


def commit(built: Path, folder: Path, forms: bytes) -> None:
    """Move a finished library to the folder of its build, with its hash and ``FORMS``, once all are on disk."""
    record = built.with_name(FORMS)
    write_file(record, forms)
    digest = built.with_name(_HASH)
    write_file(digest, f"{sha256_file(built)}\n".encode())
    with storage_errors("write", built):
        descriptor = os.open(built, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fchmod(descriptor, 0o755)  # whatever the umask is
            flush_to_disk(descriptor)
        finally:
            os.close(descriptor)
        digest.chmod(0o644)
        record.chmod(0o644)
    rename(record, folder / FORMS)
    rename(digest, folder / _HASH)
    rename(built, folder / LIBRARY)
