"""Reading a checkpoint: everything is checked before anything is handed out, so no weight changes on a damaged one."""

from collections.abc import Collection
from pathlib import Path
from typing import get_args

from hornbook.checkpoint.contents import Contents
from hornbook.checkpoint.listing import resolve
from hornbook.checkpoint.manifest import Kind, read_manifest, verify
from hornbook.checkpoint.tensors import read
from hornbook.errors import CheckpointError, DataError
from hornbook.storage.json_files import read_bytes, read_json

__all__ = ["load", "resolve"]

_MAX_FILE_BYTES = 1 << 30


def load(path: Path, *, only: Collection[str] | None = None) -> Contents:
    """Return what a checkpoint holds; all of its files are verified first.

    Args:
        path: the checkpoint's own folder.
        only: groups of tensors to read, as ``{"model"}``; None for all. Documents and files are always read.

    Raises:
        CheckpointError: it is damaged; all problems in one line.
        StorageError: it cannot be read.
    """
    if problems := verify(path):
        raise CheckpointError(f"checkpoint {path} is damaged: {'; '.join(problems)}; take an older one")
    manifest = read_manifest(path)
    names = {kind: [name for name, entry in manifest.files.items() if entry.kind == kind] for kind in get_args(Kind)}
    groups = [name.removesuffix(".safetensors") for name in names["tensors"]]
    try:
        return Contents(
            step=manifest.step,
            tensors={group: read(path / f"{group}.safetensors") for group in groups if only is None or group in only},
            documents={name.removesuffix(".json"): read_json(path / name, "a document") for name in names["document"]},
            files={name: read_bytes(path / name, "a file", limit=_MAX_FILE_BYTES) for name in names["file"]},
        )
    except DataError as error:
        raise CheckpointError(str(error)) from error
