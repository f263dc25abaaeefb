"""What a folder was before it was locked, so that work that fails before it writes anything leaves no trace.

traces = Traces(Path("runs/new"), "lock")     neither runs nor runs/new exists
...                                           runs/new/lock is made, and the work is refused
traces.remove()                               runs/new/lock, runs/new and runs are gone
"""

from contextlib import suppress
from pathlib import Path

from hornbook.storage.system import perform, storage_errors


class Traces:
    """The entries of a folder, and which of it and its parents there were, when this object was made.

    Args:
        folder: to be locked.
        lock: the name of the lock file in it.
    """

    def __init__(self, folder: Path, lock: str) -> None:
        self._folder, self._lock = folder, lock
        with storage_errors("create the folder", folder):  # its name may be too long
            self._missing = [path for path in (folder, *folder.parents) if not path.exists()]
        self._before = self._entries()

    def remove(self) -> None:
        """Remove the lock file and the folders that are new, unless there is more; to be called with the lock held."""
        if self._lock in self._before or self._entries() != self._before | {self._lock}:
            return
        with suppress(OSError):  # what cannot be removed stays; the error of the work counts
            perform("unlink", self._folder / self._lock, (self._folder / self._lock).unlink)
            for folder in self._missing:
                perform("unlink", folder, folder.rmdir)

    def _entries(self) -> set[str]:
        with storage_errors("read the folder", self._folder):
            return {path.name for path in self._folder.iterdir()} if self._folder.is_dir() else set()
