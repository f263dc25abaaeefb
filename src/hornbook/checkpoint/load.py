"""Reading a checkpoint: all of it is verified first, so no weight changes on a damaged one; tensors are read on demand.

    load(path).tensors["model"]["embedding.tokens"]   read now, from the boxes of as many files as hold parts of it
    load(path).tensors["model"].read("embedding.tokens", Box((0, 0), (70, 8)))   its first columns alone

So whoever copies tensors somewhere holds one of them at a time, not the whole checkpoint.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.checkpoint import tensors as stored
from hornbook.checkpoint.boxes import Box, Layout
from hornbook.checkpoint.contents import Contents, Shard
from hornbook.checkpoint.listing import resolve
from hornbook.checkpoint.manifest import Kind, Manifest, read_manifest, verify
from hornbook.checkpoint.tensors import open_file
from hornbook.errors import CheckpointError, DataError
from hornbook.storage.json_files import read_bytes, read_json

if TYPE_CHECKING:  # documents and files are read without torch
    from torch import Tensor

__all__ = ["StoredTensors", "load", "read_box", "resolve", "shapes_of"]

_MAX_FILE_BYTES = 1 << 30


class StoredTensors(Mapping[str, "Tensor"]):
    """The tensors of a group by name, each read from its files when it is looked up, onto the CPU.

    Args:
        folder: of the checkpoint.
        layouts: of the tensors, by name.
        files: open files, by name.
    """

    def __init__(self, folder: Path, layouts: Mapping[str, Layout], files: Mapping[str, Any]) -> None:
        self._folder, self._layouts, self._files = folder, layouts, files

    def __getitem__(self, name: str) -> "Tensor":
        return self.read(name, Box.whole(self._layouts[name].shape))

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)

    def __contains__(self, name: object) -> bool:
        return name in self._layouts

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The logical shapes by name; nothing is read."""
        return {name: layout.shape for name, layout in self._layouts.items()}

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtypes by name, as safetensors calls them; nothing is read."""
        return {name: layout.dtype for name, layout in self._layouts.items()}

    def read(self, name: str, box: Box) -> "Tensor":
        """Return a box of a tensor, from the files that hold parts of it.

        Raises CheckpointError if a file is malformed.
        """
        return stored.read_box(self._folder, self._files, name, self._layouts[name], box)


def load(path: Path, *, only: Collection[str] | None = None, verified: bool = False) -> Contents:
    """Return what a checkpoint holds; all of its files are verified first.

    Args:
        path: the checkpoint's own folder.
        only: groups of tensors to read, as ``{"model"}``; None for all. Documents and files are always read.
        verified: whether the caller, or the ranks together, have just verified it.

    Raises:
        CheckpointError: it is damaged; all problems in one line.
    """
    if not verified and (problems := verify(path)):
        raise CheckpointError(f"checkpoint {path} is damaged: {'; '.join(problems)}; take an older one")
    manifest = read_manifest(path)
    documents, files = _names(manifest, "document"), _names(manifest, "file")
    try:
        return Contents(
            step=manifest.step,
            tensors=_tensors(path, manifest, only),
            documents={name.removesuffix(".json"): read_json(path / name, "a document") for name in documents},
            files={name: read_bytes(path / name, "a file", limit=_MAX_FILE_BYTES) for name in files},
        )
    except DataError as error:
        raise CheckpointError(str(error)) from error


def shapes_of(tensors: "Mapping[str, Tensor | Shard]") -> dict[str, tuple[int, ...]]:
    """Return the shapes of whole tensors by name; stored ones are not read."""
    if isinstance(tensors, StoredTensors):
        return tensors.shapes
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def read_box(tensors: "Mapping[str, Tensor]", name: str, box: Box) -> "Tensor":
    """Return a box of one of ``tensors``; of a stored one, nothing else is read."""
    if isinstance(tensors, StoredTensors):
        return tensors.read(name, box)
    tensor = tensors[name]
    return tensor[box.inside(Box.whole(tuple(tensor.shape)))]


def _names(manifest: Manifest, kind: Kind) -> list[str]:
    return [name for name, entry in manifest.files.items() if entry.kind == kind]


def _tensors(path: Path, manifest: Manifest, only: Collection[str] | None) -> dict[str, StoredTensors]:
    """Return the wanted groups, opened; refuse files that do not hold what the manifest says of them."""
    groups = manifest.tensors
    if groups is None:  # version 1: the files say what they hold
        files = {name.removesuffix(".safetensors"): name for name in _names(manifest, "tensors")}
        groups = {group: _layouts_of(path, file) for group, file in files.items() if only is None or group in only}
    return {group: _open(path, layouts) for group, layouts in groups.items() if only is None or group in only}


def _layouts_of(path: Path, name: str) -> dict[str, Layout]:
    """Return the layouts of the tensors of a file that holds them whole."""
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
            raise CheckpointError(f"{path}: tensor {name} is not whole: {problem}; take another checkpoint")
        for file, box in layout.boxes.items():
            stored = files[file].get_slice(name) if name in held[file] else None
            if stored is None or (stored.get_dtype(), tuple(stored.get_shape())) != (layout.dtype, box.shape):
                raise CheckpointError(
                    f"{path / file} does not hold {list(box.shape)} of {name} as {layout.dtype}; take another one"
                )
    return StoredTensors(path, layouts, files)
