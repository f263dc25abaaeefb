"""The manifest of a checkpoint, its last written file, and the check of a folder against it.

    step-00001200/manifest.json
        {"format": "hornbook checkpoint", "version": 1, "step": 1200,
         "files": {"model.safetensors": {"kind": "tensors", "size": 4096, "sha256": "9f86..."}, ...}}

safetensors has no checksum, and a file system that lost power may leave files that are empty, cut or stale, so a folder
counts when its manifest names exactly the files that are there and each has its size and SHA-256. The price is reading
all of it, at 0.5 to 2 GB/s a core.
"""

import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from hornbook.errors import CheckpointError, DataError, HornbookError
from hornbook.storage.files import sha256_file
from hornbook.storage.json_files import dump_json, parse_json, read_bytes
from hornbook.storage.system import translated

MANIFEST: Final = "manifest.json"
_FORMAT: Final = "hornbook checkpoint"
_VERSION: Final = 1

Kind = Literal["tensors", "document", "file"]
_SUFFIXES: Final[dict[Kind, str]] = {"tensors": ".safetensors", "document": ".json", "file": ""}
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_STEP_NAME: Final = re.compile(r"step-([0-9]{8,18})")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file: how it is read, its size in bytes, and the SHA-256 of its content."""

    kind: Kind
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint holds beside the manifest: files by name."""

    step: int
    files: Mapping[str, Entry]

    def to_bytes(self) -> bytes:
        """Return the content of ``manifest.json``."""
        files = {name: asdict(entry) for name, entry in self.files.items()}
        return dump_json({"format": _FORMAT, "version": _VERSION, "step": self.step, "files": files})


def folder_of(folder: Path, step: int) -> Path:
    """Return where the checkpoint of ``step`` lies in a folder of checkpoints: ``folder/step-00001200``."""
    return folder / f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint's folder.

    Raises:
        CheckpointError: it is no such name.
    """
    step = parse_step(path.name)
    if step is None:
        raise CheckpointError(f"{path}: expected a checkpoint named like step-00001200; choose one from its folder")
    return step


def parse_step(name: str) -> int | None:
    """Return the step of ``step-00001200``; None for every other name, ``step-1200`` and ``step-0000001200`` too."""
    match = _STEP_NAME.fullmatch(name)
    step = int(match[1]) if match else -1
    return step if name == f"step-{step:08d}" else None


def is_plain_name(name: str) -> bool:
    """Tell whether a name stays inside its folder on every system: no path, no dot in front, not the manifest's own."""
    return _PLAIN_NAME.fullmatch(name) is not None and name != MANIFEST


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of the checkpoint ``path``; whether its files agree, ``verify`` tells.

    Raises:
        CheckpointError: it is missing, malformed or of another format.
        StorageError: it cannot be read.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder; expected a checkpoint")
    if (path / MANIFEST).is_symlink():
        raise CheckpointError(f"{MANIFEST} is not a plain file")
    try:
        data = read_bytes(path / MANIFEST, "the manifest")
        manifest = _parse(parse_json(data, MANIFEST))
    except DataError as error:
        raise CheckpointError(str(error)) from error
    if manifest.to_bytes() != data:
        raise CheckpointError(f"{MANIFEST} is not as hornbook writes it")
    return manifest


def verify(path: Path) -> list[str]:
    """Check a checkpoint's folder against its manifest, every byte of it; return what is wrong, or nothing."""
    try:
        manifest = read_manifest(path)
        with translated("read the folder", path):
            found = {file.name for file in path.iterdir()} - {MANIFEST}
    except HornbookError as error:
        return [str(error)]
    problems = []
    if parse_step(path.name) not in (None, manifest.step):
        problems.append(f"{MANIFEST} is of step {manifest.step}, the folder's name is {path.name}")
    problems += [f"{name!r} is not in the manifest" for name in sorted(found - manifest.files.keys())]
    checks = (_problem(path / name, entry) for name, entry in sorted(manifest.files.items()))
    return problems + [problem for problem in checks if problem]


def _problem(path: Path, entry: Entry) -> str | None:
    """Say what is wrong with one file, cheap questions first."""
    try:
        with translated("read", path):
            status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return f"{path.name} is not a plain file"
        if status.st_size != entry.size:
            return f"{path.name} has {status.st_size} bytes, expected {entry.size}"
        if sha256_file(path) != entry.sha256:
            return f"{path.name} is altered: its SHA-256 is not the manifest's"
    except HornbookError as error:
        return f"{path.name} is missing" if isinstance(error.__cause__, FileNotFoundError) else str(error)
    return None


def _parse(value: Any) -> Manifest:
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        raise CheckpointError(f"{MANIFEST} is not a checkpoint's; expected the format {_FORMAT!r}")
    if value.get("version") != _VERSION:
        raise CheckpointError(
            f"{MANIFEST} has format version {value.get('version')!r}, this hornbook reads {_VERSION}; use a newer one"
        )
    if set(value) != {"format", "version", "step", "files"} or not _is_count(value["step"]):
        raise CheckpointError(f"{MANIFEST} needs a step, a whole number, and files, and nothing else")
    if not isinstance(value["files"], dict):
        raise CheckpointError(f"{MANIFEST}: files must be an object")
    return Manifest(step=value["step"], files={name: _parse_entry(name, item) for name, item in value["files"].items()})


def _parse_entry(name: str, value: Any) -> Entry:
    if not is_plain_name(name):
        raise CheckpointError(f"{MANIFEST}: {name!r:.80} is no plain file name")
    if not isinstance(value, dict) or set(value) != {"kind", "size", "sha256"}:
        raise CheckpointError(f"{MANIFEST}: {name} needs kind, size and sha256, and nothing else")
    size, sha256 = value["size"], value["sha256"]
    kinds = [kind for kind, suffix in _SUFFIXES.items() if kind == value["kind"] and name.endswith(suffix)]
    if not kinds:
        raise CheckpointError(f"{MANIFEST}: {name} cannot be of the kind {value['kind']!r:.80}")
    if not _is_count(size) or not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise CheckpointError(f"{MANIFEST}: {name} has a malformed size or sha256")
    return Entry(kind=kinds[0], size=size, sha256=sha256)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
