"""Power loss at any moment: recorded disk operations are replayed without what was not yet synced.

::

    act -> [create a, write a, fsync a, rename a b, fsync folder]      recorded with all bytes
    cut after some operation -> what is durable, and what is pending
      pending bytes      lost, kept, cut off at any byte, zeroed from any byte on, or some of the writes
      pending entries    some of the changes of a folder's names, in their order or not
    -> a folder on disk, as after a power failure -> check

A file's bytes are durable after an fsync of the file, and a folder's entries after one of the folder, which is all that
POSIX promises. File systems lose less than that (Pillai et al., "All File Systems Are Not Created Equal", 2014).
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, cast

from actions import ACTIONS, hashes
from trials import Part, Trial

from hornbook.storage import system


@dataclass
class Node:
    """A file or a folder: what is durable of it, and its changes since."""

    is_folder: bool
    data: bytes = b""
    entries: dict[str, "Node"] = field(default_factory=dict)
    writes: list[bytes] = field(default_factory=list)
    """Pending, appended to ``data``."""
    changes: list[dict[str, "Node | None"]] = field(default_factory=list)
    """Pending changes of ``entries``, each atomic; None removes a name."""

    def now(self) -> dict[str, "Node"]:
        """Return the entries that the running system sees."""
        return _changed(self.entries, self.changes)

    def sync(self) -> None:
        """Make everything durable, but not what is inside of a folder's entries."""
        self.data, self.writes = self.data + b"".join(self.writes), []
        self.entries, self.changes = self.now(), []


def _changed(entries: dict[str, Node], changes: list[dict[str, Node | None]]) -> dict[str, Node]:
    entries = dict(entries)
    for change in changes:
        for name, node in change.items():
            if node is None:
                entries.pop(name, None)
            else:
                entries[name] = node
    return entries


@dataclass
class Disk:
    """A disk that records what is pending, below ``root``; it takes the place of hornbook's fault points."""

    root: Path
    top: Node
    left: int
    """Operations until the power fails."""

    def perform(self, name: str, path: Path, action: Callable[[], Any]) -> Any:
        """Perform and record an operation; see `hornbook.storage.faults`."""
        self._require_power()
        result = action()
        if Path(path).is_relative_to(self.root):
            self._record(name, Path(path))
            self._count()
        return result

    def write(self, path: Path, descriptor: int, data: memoryview) -> int:
        """Write and record the bytes."""
        self._require_power()
        written = os.write(descriptor, data)
        if Path(path).is_relative_to(self.root):
            self._find(Path(path)).writes.append(bytes(data[:written]))
            self._count()
        return written

    def _count(self) -> None:
        self.left -= 1
        self._require_power()

    def _require_power(self) -> None:
        if self.left <= 0:  # also for the clean-up of what is interrupted
            raise PowerFailure

    def _record(self, name: str, path: Path) -> None:
        if name == "fsync":
            self._find(path).sync()
            return
        folder = self._find(path.parent)
        match name:
            case "open" if path.name not in folder.now() or (path.is_file() and not path.stat().st_size):
                folder.changes.append({path.name: Node(is_folder=path.is_dir())})
            case "unlink":
                folder.changes.append({path.name: None})
            case "rename":
                source = next(gone for gone in _gone(self.top, self.root))
                node = self._find(source)
                if source.parent == path.parent:
                    folder.changes.append({source.name: None, path.name: node})
                else:  # two folders: either may be durable first
                    self._find(source.parent).changes.append({source.name: None})
                    folder.changes.append({path.name: node})

    def _find(self, path: Path) -> Node:
        node = self.top
        for name in path.relative_to(self.root).parts:
            node = node.now()[name]
        return node


def _gone(node: Node, path: Path) -> Iterator[Path]:
    """Yield the recorded paths that are no longer on disk; after a rename, the first is what it was called before."""
    for name, entry in node.now().items():
        if not os.path.lexists(path / name):
            yield path / name
        elif entry.is_folder:
            yield from _gone(entry, path / name)


class PowerFailure(BaseException):
    """The recorded operations end here."""


def read_tree(folder: Path) -> Node:
    """Return a folder's tree, all of it durable."""
    entries = {
        path.name: read_tree(path) if path.is_dir() else Node(is_folder=False, data=path.read_bytes())
        for path in folder.iterdir()
    }
    return Node(is_folder=True, entries=entries)


def write_after_failure(node: Node, path: Path, draws: Random) -> None:
    """Write what a power failure leaves of ``node``, one of the many possibilities."""
    if not node.is_folder:
        path.write_bytes(_data_after_failure(node, draws))
        return
    path.mkdir(exist_ok=True)
    changes = node.changes
    if draws.random() < 0.5:  # a journal: some of the first
        changes = changes[: draws.randint(0, len(changes))]
    else:
        changes = [change for change in changes if draws.random() < 0.5]
    for name, entry in _changed(node.entries, changes).items():
        write_after_failure(entry, path / name, draws)


def _data_after_failure(node: Node, draws: Random) -> bytes:
    pending = b"".join(node.writes)
    at = draws.randint(0, len(pending))
    match draws.randrange(5):
        case 0:
            pending = b""
        case 1:
            pending = pending[:at]
        case 2:
            pending = pending[:at] + bytes(len(pending) - at)
        case 3:
            pending = b"".join(data if draws.random() < 0.5 else bytes(len(data)) for data in node.writes)
    return node.data + pending


def _run(trial: Trial) -> str:
    name = list(ACTIONS)[trial.number % len(ACTIONS)]
    disk = trial.folder / "disk"
    total, _ = _act(disk, name, _ENDLESS)
    finished = hashes(disk)
    shutil.rmtree(disk)
    operations = trial.draws.randint(1, total) if trial.number % 8 else total + 1
    _, top = _act(disk, name, operations)
    shutil.rmtree(disk)
    write_after_failure(top, disk, trial.draws)
    if operations > total:  # the action has returned
        left = hashes(disk)
        lost = sorted(path for path, content in finished.items() if left.get(path) != content)
        assert not lost, f"what was finished is lost: {lost}"
    ACTIONS[name].check(disk)
    return name


def _act(folder: Path, name: str, operations: int) -> tuple[int, Node]:
    """Act until the power fails; return the number of operations and what the disk has."""
    folder.mkdir()
    ACTIONS[name].begin(folder)
    disk = Disk(root=folder, top=read_tree(folder), left=operations)
    system.fault_points = cast("ModuleType", disk)
    try:
        ACTIONS[name].act(folder)
    except PowerFailure:
        pass
    finally:
        system.fault_points = None
    return operations - disk.left, disk.top


_ENDLESS = 10**9

POWER_LOSS = Part(
    name="power-loss",
    promise="after a power failure at any moment, with what was not synced lost, cut off, zeroed or reordered, there "
    "is the old state or the new one, and no manifest over other bytes",
    run=_run,
    trials=2000,
    short=50,
)
