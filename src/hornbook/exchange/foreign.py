"""Files of folders that others made: a stranger's names and links must not lead elsewhere."""

import re
from pathlib import Path
from typing import Final

from hornbook.errors import CheckpointError
from hornbook.storage.system import storage_errors

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def inside(folder: Path, name: str) -> Path:
    """Return the regular file ``name`` of a folder, or of the cache's blobs where the folder is one of its snapshots.

    Raises CheckpointError if the name is no plain one, there is no such file, or a link leads out of the folder.
    """
    if not _PLAIN_NAME.fullmatch(name):
        raise CheckpointError(f"{folder}: {name!r:.120} is no plain file name; a folder names files of its own alone")
    path = folder / name
    with storage_errors("read", path):
        target, home = path.resolve(), folder.resolve()
        blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
        if not (target.is_relative_to(home) or target.is_relative_to(blobs)):
            raise CheckpointError(f"{path} is a link that leaves its folder; put the file itself there")
        if not target.is_file():
            raise CheckpointError(f"{path} is missing, or no plain file; fetch the folder again")
    return path
