"""Find checkpoints on disk; nothing is cached.

    runs/demo/checkpoints/  step-00000400/  step-00000800/  step-00001200/ (damaged)  step-00001600.tmp-4711/
        newest_sound  -> step-00000800, and a warning about step-00001200
        resolve("runs/demo")  -> the same

The price: finding the newest intact checkpoint reads all of it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hornbook.checkpoint.manifest import MANIFEST, parse_step, read_manifest, verify
from hornbook.config.suggest import did_you_mean_path
from hornbook.errors import CheckpointError
from hornbook.storage.system import storage_errors
from hornbook.text.hub_client import hub_hint, is_model_name
from hornbook.wording import counted

_logger = logging.getLogger("hornbook.checkpoint")

_EXPECTED = "expected a run's folder, a checkpoint or a Hugging Face folder"


@dataclass(frozen=True, kw_only=True)
class Info:
    """A checkpoint on disk; ``problems`` is empty if it is intact."""

    step: int | None
    """Finished steps; None if neither the folder's name nor its manifest states them."""
    path: Path
    size: int
    """Bytes of all its files."""
    problems: list[str]


def committed(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of every entry in ``folder`` with a checkpoint's name, oldest first, intact or not."""
    if not folder.is_dir():
        return []
    with storage_errors("read the folder", folder):
        found = [(parse_step(path.name), path) for path in folder.iterdir()]
    return sorted((step, path) for step, path in found if step is not None)


def steps_in(folder: Path) -> list[int]:
    """Return the steps of all entries in ``folder`` with a checkpoint's name, in order, intact or not."""
    return [step for step, _ in committed(folder)]


def list_checkpoints(folder: Path) -> list[Info]:
    """Verify every byte of all checkpoints in a folder, and return them oldest first."""
    return [describe(path) for _, path in committed(folder)]


def describe(path: Path) -> Info:
    """Verify every byte of a checkpoint, whatever its folder is called."""
    problems = verify(path)
    step = parse_step(path.name) if problems else read_manifest(path).step
    with storage_errors("read the folder", path):
        size = sum(file.lstat().st_size for file in path.iterdir()) if path.is_dir() else 0
    return Info(step=step, path=path, size=size, problems=problems)


def newest_sound(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """Return the newest intact checkpoint, or None; call ``warn`` with a message for each damaged one."""
    for _, path in reversed(committed(folder)):
        problems = verify(path)
        if not problems:
            return path
        warn(f"checkpoint {path} is damaged and skipped: {'; '.join(problems)}")
    return None


def require_source(source: Path | str) -> None:
    """Raise CheckpointError unless ``source`` exists or may be a name on the hub; the message suggests a path.

    This check needs neither torch nor the network.
    """
    path = Path(source)
    is_there = path.is_dir() or path.with_name(f"{path.name}.index").exists()  # the prefix of a TensorFlow checkpoint
    if not is_there and not is_model_name(source):
        what = "it is a file" if path.exists() else f"no such folder{hub_hint(path) or did_you_mean_path(path)}"
        raise CheckpointError(f"no run or checkpoint at {path}: {what}; {_EXPECTED}")


def resolve(path: Path, warn: Callable[[str], None] = _logger.warning) -> Path:
    """Return the checkpoint at ``path``: itself, or the newest intact one of a run or of its checkpoints folder.

    Raises CheckpointError if there is none.
    """
    if not path.is_dir():
        raise CheckpointError(f"no run or checkpoint at {path}: no such folder{hub_hint(path)}; {_EXPECTED}")
    if is_checkpoint(path):
        return path
    folder = checkpoints_of(path)
    found = newest_sound(folder, warn)
    if found is None:
        if num_damaged := len(committed(folder)):
            raise CheckpointError(
                f"{path} has no intact checkpoint, but {counted(num_damaged, 'damaged one')}: restore the files from a "
                "copy, or train again with another `output`"
            )
        raise CheckpointError(f"{path} has no checkpoint; {_EXPECTED}")
    return found


def is_checkpoint(path: Path) -> bool:
    """Return whether ``path`` is one checkpoint, intact or not, judging by its name and its manifest."""
    return (path / MANIFEST).exists() or parse_step(path.name) is not None


def checkpoints_of(path: Path) -> Path:
    """Return the folder of checkpoints, given that folder or the run's."""
    return path / "checkpoints" if (path / "checkpoints").is_dir() else path
