"""Files in untrusted folders, whose names and links must not lead outside."""

import re
from pathlib import Path
from typing import Final

from hornbook.errors import CheckpointError
from hornbook.storage.system import storage_errors

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
"""Start of what git leaves instead of a large file if Git LFS is not installed."""


def inside(folder: Path, name: str) -> Path:
    """Return the regular file ``name`` of a folder, or of the cache's blobs if the folder is a snapshot in it.

    Raises CheckpointError if the name is not plain, the file is missing or only a pointer of Git LFS, or a link leads
    out of the folder.
    """
    if not _PLAIN_NAME.fullmatch(name):
        raise CheckpointError(f"{folder}: {name!r:.120} is not a plain file name; files must be in the folder itself")
    path = folder / name
    with storage_errors("read", path):
        target, home = path.resolve(), folder.resolve()
        blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
        if not (target.is_relative_to(home) or target.is_relative_to(blobs)):
            raise CheckpointError(f"{path} is a link out of its folder; replace it by the file")
        if not target.is_file():
            raise CheckpointError(f"{path} is missing or not a plain file; download the folder again")
        with path.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise CheckpointError(f"{path} is a pointer of Git LFS, not the file: run `git lfs pull` in {folder}")
    return path
