"""Load a checkpoint: verify all of it first, so that damage is found before any weight changes; read tensors on access.

    load(path).tensors["model"]["embedding.tokens"]   is read here, from the boxes of every file that stores a part
    load(path).tensors["model"].read("embedding.tokens", Box((0, 0), (70, 8)))   reads only the first columns

So code that copies tensors holds one of them at a time, not the whole checkpoint.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.checkpoint import tensors as stored
from hornbook.checkpoint.boxes import Box, Contents, Layout, Shard
from hornbook.checkpoint.listing import resolve
from hornbook.checkpoint.manifest import Kind, Manifest, read_manifest, verify
from hornbook.checkpoint.tensors import open_file
from hornbook.errors import CheckpointError, DataError
from hornbook.storage.json_files import read_bytes, read_json

if TYPE_CHECKING:  # documents and files are read without torch
    from torch import Tensor

__all__ = ["StoredTensors", "dtypes_of", "load", "read_box", "resolve", "shapes_of"]

_MAX_FILE_BYTES = 1 << 30


class StoredTensors(Mapping[str, "Tensor"]):
    """The tensors of a group by name, each read from its files to the CPU on access.

    Args:
        folder: the checkpoint's folder.
        layouts: layouts of the tensors, by name.
        files: open files, by name.
    """

    def __init__(self, folder: Path, layouts: Mapping[str, Layout], files: Mapping[str, Any]) -> None:
        self._folder, self.layouts, self._files = folder, layouts, files

    def __getitem__(self, name: str) -> "Tensor":
        return self.read(name, Box.whole(self.layouts[name].shape))

    def __iter__(self) -> Iterator[str]:
        return iter(self.layouts)

    def __len__(self) -> int:
        return len(self.layouts)

    def __contains__(self, name: object) -> bool:
        return name in self.layouts

    def read(self, name: str, box: Box) -> "Tensor":
        """Return a box of a tensor, read from the files that store parts of it.

        Raises CheckpointError if a file is malformed.
        """
        return stored.read_box(self._folder, self._files, name, self.layouts[name], box)


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
    groups = manifest.tensors
    if groups is None:  # version 1: layouts are in the files
        held = {name.removesuffix(".safetensors"): name for name in _names(manifest, "tensors")}
        groups = {group: _layouts_of(path, file) for group, file in held.items() if only is None or group in only}
    documents, files = _names(manifest, "document"), _names(manifest, "file")
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
    return {name: stored.DTYPES[str(tensor.dtype)] for name, tensor in held.items()}


def read_box(tensors: "Mapping[str, Tensor]", name: str, box: Box) -> "Tensor":
    """Return a box of one of ``tensors``; reads only that box of a stored tensor."""
    if isinstance(tensors, StoredTensors):
        return tensors.read(name, box)
    tensor = tensors[name]
    return tensor[box.inside(Box.whole(tuple(tensor.shape)))]


def _names(manifest: Manifest, kind: Kind) -> list[str]:
    return [name for name, entry in manifest.files.items() if entry.kind == kind]


def _layouts_of(path: Path, name: str) -> dict[str, Layout]:
    """Return the layouts of the whole tensors of a file."""
    file = open_file(path / name)
    found = {tensor: file.get_slice(tensor) for tensor in sorted(file.keys())}
    shapes = {tensor: tuple(stored.get_shape()) for tensor, stored in found.items()}
    return {
        tensor: Layout(dtype=stored.get_dtype(), shape=shapes[tensor], boxes={name: Box.whole(shapes[tensor])})
        for tensor, stored in found.items()
    }


def _open(path: Path, layouts: Mapping[str, Layout]) -> StoredTensors:
    names = sorted({file for layout in layouts.values() for file in layout.boxes})
    files = {name: open_file(path / name) for name in names}
    held = {name: set(file.keys()) for name, file in files.items()}
    for name, layout in layouts.items():
        if problem := layout.problem():
            raise CheckpointError(f"{path}: tensor {name} is incomplete: {problem}; use another checkpoint")
        for file, box in layout.boxes.items():
            stored = files[file].get_slice(name) if name in held[file] else None
            if stored is None or (stored.get_dtype(), tuple(stored.get_shape())) != (layout.dtype, box.shape):
                raise CheckpointError(
                    f"{path / file} does not have {list(box.shape)} of {name} as {layout.dtype}; use another checkpoint"
                )
    return StoredTensors(path, layouts, files)
