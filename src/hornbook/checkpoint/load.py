"""Find and load a checkpoint: verify all of it first, so that damage changes no weights; read tensors on access.

    runs/demo/checkpoints/  step-00000400/  step-00000800/  step-00001200/ (damaged)  step-00001600.tmp-4711/
        resolve("runs/demo")  -> step-00000800, and a warning about step-00001200; reads all of both

    load(path).tensors["model"]["embedding.tokens"]   is read here, from the boxes of every file that stores a part
    load(path).tensors["model"].read("embedding.tokens", Box((0, 0), (70, 8)))   reads only the first columns

So code that copies tensors holds one of them at a time, not the whole checkpoint.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hornbook.checkpoint.manifest import MANIFEST, Kind, parse_step, read_manifest, verify
from hornbook.checkpoint.tensors import DTYPES, Box, Contents, Layout, Shard, StoredTensors, open_file
from hornbook.config.suggest import did_you_mean_path
from hornbook.errors import CheckpointError, DataError
from hornbook.storage.json_files import read_bytes, read_json
from hornbook.storage.system import storage_errors
from hornbook.text.hub_client import hub_hint, is_model_name
from hornbook.wording import counted

if TYPE_CHECKING:  # documents and files are read without torch
    from torch import Tensor

_logger = logging.getLogger("hornbook.checkpoint")

_MAX_FILE_BYTES = 1 << 30
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
                "copy, or train again in another folder"
            )
        raise CheckpointError(f"{path} has no checkpoint; {_EXPECTED}")
    return found


def is_checkpoint(path: Path) -> bool:
    """Return whether ``path`` is one checkpoint, intact or not, judging by its name and its manifest."""
    return (path / MANIFEST).exists() or parse_step(path.name) is not None


def checkpoints_of(path: Path) -> Path:
    """Return the folder of checkpoints, given that folder or the run's."""
    return path / "checkpoints" if (path / "checkpoints").is_dir() else path


def load(path: Path, *, only: Collection[str] | None = None, verified: bool = False) -> Contents:
    """Return the contents of a checkpoint after verifying all of its files.

    Args:
        path: the checkpoint's own folder.
        only: groups of tensors to open, such as ``{"model"}``; None for all. Documents and files are always read.
        verified: whether the caller, or all ranks together, have just verified it.

    Raises:
        CheckpointError: it is damaged; the message lists all problems.
    """
    if not verified and (problems := verify(path)):
        raise CheckpointError(f"checkpoint {path} is damaged: {'; '.join(problems)}; use an older one")
    manifest = read_manifest(path)
    kinds: tuple[Kind, ...] = ("tensors", "document", "file")
    stored_files, documents, files = (
        [name for name, entry in manifest.files.items() if entry.kind == kind] for kind in kinds
    )
    groups = manifest.tensors
    if groups is None:  # version 1: layouts are in the files
        held = {name.removesuffix(".safetensors"): name for name in stored_files}
        groups = {group: _layouts_of(path, file) for group, file in held.items() if only is None or group in only}
    try:
        return Contents(
            step=manifest.step,
            tensors={group: _open(path, groups[group]) for group in groups if only is None or group in only},
            documents={name.removesuffix(".json"): read_json(path / name, "a document") for name in documents},
            files={name: read_bytes(path / name, "a file", limit=_MAX_FILE_BYTES) for name in files},
        )
    except DataError as error:
        raise CheckpointError(str(error)) from error


def shapes_of(tensors: "Mapping[str, Tensor | Shard]") -> dict[str, tuple[int, ...]]:
    """Return the shapes of whole tensors by name, without reading stored ones."""
    if isinstance(tensors, StoredTensors):
        return {name: layout.shape for name, layout in tensors.layouts.items()}
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def dtypes_of(tensors: "Mapping[str, Tensor | Shard]") -> dict[str, str]:
    """Return the dtypes of tensors by name, as in safetensors, without reading stored ones."""
    if isinstance(tensors, StoredTensors):
        return {name: layout.dtype for name, layout in tensors.layouts.items()}
    held = {name: tensor.values if isinstance(tensor, Shard) else tensor for name, tensor in tensors.items()}
    return {name: DTYPES[str(tensor.dtype)] for name, tensor in held.items()}


def read_box(tensors: "Mapping[str, Tensor]", name: str, box: Box) -> "Tensor":
    """Return a box of one of ``tensors``; reads only that box of a stored tensor."""
    if isinstance(tensors, StoredTensors):
        return tensors.read(name, box)
    tensor = tensors[name]
    return tensor[box.inside(Box.whole(tuple(tensor.shape)))]


def _layouts_of(path: Path, name: str) -> dict[str, Layout]:
    """Return the layouts of the whole tensors of a file."""
    return {
        tensor: Layout(dtype=dtype, shape=shape, boxes={name: Box.whole(shape)})
        for tensor, (dtype, shape) in sorted(open_file(path / name).layouts.items())
    }


def _open(path: Path, layouts: Mapping[str, Layout]) -> StoredTensors:
    names = sorted({file for layout in layouts.values() for file in layout.boxes})
    files = {name: open_file(path / name) for name in names}
    for name, layout in layouts.items():
        if problem := layout.problem():
            raise CheckpointError(f"{path}: tensor {name} is incomplete: {problem}; use another checkpoint")
        for file, box in layout.boxes.items():
            if files[file].layouts.get(name) != (layout.dtype, box.shape):
                raise CheckpointError(
                    f"{path / file} does not have {list(box.shape)} of {name} as {layout.dtype}; use another checkpoint"
                )
    return StoredTensors(path, layouts, files)
