"""The manifest of a checkpoint, its last written file, and the verification of a folder against it.

    step-00001200/manifest.json
        {"format": "hornbook checkpoint", "version": 2, "step": 1200,
         "files": {"model-00000.safetensors": {"kind": "tensors", "size": 4096, "sha256": "9f86..."}, ...},
         "tensors": {"model": {"head.norm.bias": {"dtype": "F32", "shape": [64], "boxes":
             [{"file": "model-00000.safetensors", "begin": [0], "shape": [64]}]}, ...}, "optimizer": ...},
         "checksum": "60b7..."}

safetensors has no checksum, and after a power loss a file system may leave files that are empty, truncated or stale. So
a checkpoint counts only if its manifest names exactly the files in the folder and each has its size and SHA-256. The
price is reading all of it, at 0.5 to 2 GB/s per core; several ranks can verify a share of the files each, and a process
need not read again what it wrote (``stamps``).

Version 1 had no tensors and no checksum: each group was one file of whole tensors, such as ``model.safetensors``.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from hornbook.checkpoint.tensors import DTYPES, Box, Layout
from hornbook.errors import CheckpointError, DataError, HornbookError
from hornbook.storage.files import sha256_file
from hornbook.storage.json_files import dump_json, dump_sealed, parse_json, read_bytes
from hornbook.storage.system import storage_errors

MANIFEST: Final = "manifest.json"
_FORMAT: Final = "hornbook checkpoint"
_VERSION: Final = 2
_MAX_BYTES: Final = 1 << 30
_MAX_DIMENSIONS: Final = 64

Kind = Literal["tensors", "document", "file"]
Stamps = Mapping[str, tuple[int, ...]]
"""By file name: the inode, size and times of a file's content when it was known to be intact."""
_STAMPED_FROM: Final = 1 << 20
"""Bytes: smaller files are read in no time, while a change within a tick of the file system's clock has no new time."""
_SUFFIXES: Final[dict[Kind, str]] = {"tensors": ".safetensors", "document": ".json", "file": ""}
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_STEP_NAME: Final = re.compile(r"step-([0-9]{8,18})")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file: its kind, its size in bytes, and the SHA-256 of its content."""

    kind: Kind
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of a checkpoint except the manifest itself."""

    step: int
    files: Mapping[str, Entry]
    """By name."""
    tensors: Mapping[str, Mapping[str, Layout]] | None = None
    """By group and name; None in version 1, in which layouts are only in the files."""

    def to_bytes(self) -> bytes:
        """Return the content of ``manifest.json``."""
        files = {name: asdict(entry) for name, entry in self.files.items()}
        values = {"format": _FORMAT, "version": 1, "step": self.step, "files": files}
        if self.tensors is None:
            return dump_json(values)
        groups: dict[str, dict[str, object]] = {group: {} for group in self.tensors}
        for group, layouts in self.tensors.items():
            for name, stored in layouts.items():
                places = sorted(stored.boxes.items())
                boxes = [{"file": file, "begin": box.begin, "shape": box.shape} for file, box in places]
                groups[group][name] = {"dtype": stored.dtype, "shape": stored.shape, "boxes": boxes}
        return dump_sealed(values | {"version": _VERSION, "tensors": groups})


def folder_of(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of ``step`` in a folder of checkpoints: ``folder/step-00001200``."""
    return folder / f"step-{step:08d}"


def parse_step(name: str) -> int | None:
    """Return the step of ``step-00001200``; None for other names, as ``step-1200`` or ``step-0000001200``."""
    match = _STEP_NAME.fullmatch(name)
    step = int(match[1]) if match else -1
    return step if name == f"step-{step:08d}" else None


def is_plain_name(name: str) -> bool:
    """Return whether a file name is safe on every system: no path, no leading dot, and not the manifest's name."""
    return _PLAIN_NAME.fullmatch(name) is not None and name != MANIFEST


def read_manifest(path: Path, name: str = MANIFEST) -> Manifest:
    """Return the manifest of the checkpoint ``path`` without checking its files; for that, see ``verify``.

    Args:
        path: the checkpoint's own folder.
        name: the manifest's file name; that of a rank's share of an unfinished checkpoint differs.

    Raises:
        CheckpointError: it is missing, malformed or has another format.
        StorageError: it cannot be read.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder; expected a checkpoint")
    if (path / name).is_symlink():
        raise CheckpointError(f"{name} is not a plain file")
    try:
        return parse_manifest(read_bytes(path / name, "the manifest", limit=_MAX_BYTES), name)
    except DataError as error:
        raise CheckpointError(str(error)) from error


@lru_cache(maxsize=4)  # each save reads the manifests of the checkpoints that it keeps
def parse_manifest(data: bytes, name: str) -> Manifest:
    """Return the manifest with this content; ``name`` is for errors. Raises CheckpointError if it is malformed."""
    try:
        value = parse_json(data, name)
    except DataError as error:
        raise CheckpointError(str(error)) from error
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        raise CheckpointError(f"{MANIFEST} is not a checkpoint's; expected the format {_FORMAT!r}")
    version = value.get("version")
    if type(version) is not int or not 1 <= version <= _VERSION:
        raise CheckpointError(
            f"{MANIFEST} has format version {version!r}, but this hornbook reads 1 to {_VERSION}; use a newer one"
        )
    objects = ["files"] if version == 1 else ["files", "tensors"]
    keys = {"format", "version", "step", *objects, *(["checksum"] if version > 1 else [])}
    if set(value) != keys or not _is_count(value["step"]):
        raise CheckpointError(f"{MANIFEST} must have step (an integer), {' and '.join(objects)}, and nothing else")
    for key in objects:
        if not isinstance(value[key], dict):
            raise CheckpointError(f"{MANIFEST}: {key} must be an object")
    files = {file: _parse_entry(file, item) for file, item in value["files"].items()}
    groups = None if version == 1 else value["tensors"]
    if groups is not None and not all(isinstance(tensors, dict) for tensors in groups.values()):
        raise CheckpointError(f"{MANIFEST}: each group of tensors must be an object")
    tensors = groups and {
        group: {own: _parse_layout(own, item, files) for own, item in found.items()} for group, found in groups.items()
    }
    manifest = Manifest(step=value["step"], files=files, tensors=tensors)
    if manifest.to_bytes() != data:
        raise CheckpointError(f"{name} is not written by hornbook, or was altered")
    return manifest


def stamps(path: Path) -> Stamps:
    """Return the stamps of the larger files of a checkpoint that was written just now; none if it cannot be read.

    Any write to a file, and another file in its place, changes its stamp.
    """
    try:
        statuses = {file.name: file.lstat() for file in path.iterdir()}
    except OSError:
        return {}
    return {name: _stamp(status) for name, status in statuses.items() if status.st_size >= _STAMPED_FROM}


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def verify(path: Path, share: tuple[int, int] = (0, 1), known: Stamps = MappingProxyType({})) -> list[str]:
    """Verify every byte of a checkpoint against its manifest; return the problems found, if any.

    Args:
        path: the checkpoint's own folder.
        share: (r, n) reads every n-th file from number r on, so that n ranks together read each file once. The set of
            files is always checked.
        known: files that still have these stamps are not read.
    """
    try:
        manifest = read_manifest(path)
        with storage_errors("read the folder", path):
            found = {file.name for file in path.iterdir()} - {MANIFEST}
    except HornbookError as error:
        return [str(error)]
    problems = []
    if parse_step(path.name) not in (None, manifest.step):
        problems.append(f"{MANIFEST} has step {manifest.step}, but the folder is named {path.name}")
    problems += [f"{name!r} is not in the manifest" for name in sorted(found - manifest.files.keys())]
    rank, size = share
    checks = (
        _problem(path / name, entry, known.get(name)) for name, entry in sorted(manifest.files.items())[rank::size]
    )
    return problems + [problem for problem in checks if problem]


def _problem(path: Path, entry: Entry, known: tuple[int, ...] | None) -> str | None:
    """Return the problem of one file, if any, with the cheap checks first."""
    try:
        with storage_errors("read", path):
            status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return f"{path.name} is not a plain file"
        if status.st_size != entry.size:
            return f"{path.name} has {status.st_size} bytes, expected {entry.size}"
        if (known is None or _stamp(status) != known) and sha256_file(path) != entry.sha256:
            return f"{path.name} was altered: its SHA-256 differs from the manifest's"
    except HornbookError as error:
        return f"{path.name} is missing" if isinstance(error.__cause__, FileNotFoundError) else str(error)
    return None


def _parse_entry(name: str, value: Any) -> Entry:
    if not is_plain_name(name):
        raise CheckpointError(f"{MANIFEST}: {name!r:.80} is not a plain file name")
    if not isinstance(value, dict) or set(value) != {"kind", "size", "sha256"}:
        raise CheckpointError(f"{MANIFEST}: {name} must have kind, size and sha256, and nothing else")
    size, sha256 = value["size"], value["sha256"]
    kinds = [kind for kind, suffix in _SUFFIXES.items() if kind == value["kind"] and name.endswith(suffix)]
    if not kinds:
        raise CheckpointError(f"{MANIFEST}: {name} cannot have the kind {value['kind']!r:.80}")
    if not _is_count(size) or not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise CheckpointError(f"{MANIFEST}: {name} has a malformed size or sha256")
    return Entry(kind=kinds[0], size=size, sha256=sha256)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _parse_layout(name: str, value: Any, files: Mapping[str, Entry]) -> Layout:
    """Return the layout of a tensor; ``Layout.problem`` checks whether its boxes cover it."""
    where = f"{MANIFEST}: tensor {name!r:.200}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "boxes"} or not isinstance(value["boxes"], list):
        raise CheckpointError(f"{where} must have dtype, shape and boxes, and nothing else")
    if value["dtype"] not in DTYPES.values() or not _is_shape(value["shape"]):
        raise CheckpointError(f"{where} has a malformed dtype or shape")
    boxes = {}
    for box in value["boxes"]:
        if not isinstance(box, dict) or set(box) != {"file", "begin", "shape"}:
            raise CheckpointError(f"{where}: a box must have file, begin and shape, and nothing else")
        entry = files.get(box["file"]) if isinstance(box["file"], str) else None
        if entry is None or entry.kind != "tensors" or box["file"] in boxes:
            raise CheckpointError(f"{where}: {box['file']!r:.80} is not a file of tensors, or has two of its boxes")
        if not _is_shape(box["begin"]) or not _is_shape(box["shape"]):
            raise CheckpointError(f"{where} has a malformed box")
        boxes[box["file"]] = Box(tuple(box["begin"]), tuple(box["shape"]))
    return Layout(dtype=value["dtype"], shape=tuple(value["shape"]), boxes=boxes)


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and len(value) <= _MAX_DIMENSIONS and all(map(_is_count, value))
