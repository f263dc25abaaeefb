"""Saving and pruning: at every moment, a checkpoint's folder is either whole or does not look like one.

    save    step-00001200.tmp-4711/  model-00000.safetensors, ..., each fsynced; manifest.json last; fsync
            -> rename to step-00001200/ (the commit) -> fsync parent
    prune   step-00000400/ -> rename to step-00000400.tmp-4711-old/ -> fsync parent -> remove

There is no ``latest`` pointer and nothing is remembered: what is committed is what the disk says. A process that dies
leaves at most a ``.tmp-`` folder, which the next save or prune removes once its process is gone. One process at a time
saves into a folder; ``storage.lock_folder`` on the run sees to that. The price: pruning reads, to check them, all
checkpoints, since one that has rotted must not count as kept.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from hornbook.checkpoint.boxes import Box, Layout
from hornbook.checkpoint.contents import Contents, Shard
from hornbook.checkpoint.listing import committed, require_space
from hornbook.checkpoint.manifest import MANIFEST, Entry, Kind, Manifest, folder_of, is_plain_name, verify
from hornbook.checkpoint.tensors import DTYPES, encode
from hornbook.errors import CheckpointError, StorageError, UserError
from hornbook.storage import files as storage
from hornbook.storage.json_files import dump_json
from hornbook.storage.system import process_is_alive, storage_errors

_TEMPORARY: Final = re.compile(r"step-[0-9]{8,18}\.tmp-([0-9]{1,10})(-old)?")
Shards = Mapping[str, Mapping[str, Shard]]
"""What one rank holds, by group and name."""
Layouts = dict[str, dict[str, Layout]]
_SLACK_BYTES: Final = 1 << 20
"""For the manifest, the folder, and what file systems add."""


class _File(NamedTuple):
    """A file to be written."""

    kind: Kind
    size: int
    chunks: Iterable[storage.BytesLike]


def save(folder: Path, contents: Contents, ranks: Sequence[Shards] = ()) -> Path:
    """Commit a checkpoint into a folder of checkpoints and return its own folder.

    A sound checkpoint of that step is left as it is; a damaged one is replaced. On an error nothing is committed and
    the temporary folder is removed as far as that is possible.

    Args:
        folder: the folder of checkpoints, as in ``runs/demo/checkpoints``; created where missing.
        contents: what to save; its tensors must not change meanwhile.
        ranks: in place of ``contents.tensors``, the boxes that each rank holds; every rank's become files of their own.

    Raises:
        StorageError: the disk is full (asked beforehand, too), read-only or failing.
        CheckpointError: a tensor or a name cannot be stored, or boxes do not make up their tensor.
    """
    final = folder_of(folder, contents.step)
    _remove_leftovers(folder)
    if os.path.lexists(final) and not verify(final):
        return final
    groups = contents.tensors.items()
    shards = ranks or [{group: {name: Shard.whole(tensors[name]) for name in tensors} for group, tensors in groups}]
    files, layouts = _files(contents, shards), _layouts(shards)
    storage.make_directory(folder)
    require_space(folder, sum(file.size for file in files.values()) + _SLACK_BYTES)
    temporary = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    try:
        _write(temporary, contents.step, files, layouts)
        aside = _hide(final) if os.path.lexists(final) else None
        storage.commit_directory(temporary, final)
    except BaseException:
        with suppress(StorageError):
            storage.remove_tree(temporary)
        raise
    if aside:
        with suppress(StorageError):
            storage.remove_tree(aside)
    return final


def prune(folder: Path, keep_last: int, keep: Collection[int] = ()) -> list[Path]:
    """Remove all sound checkpoints but the newest ``keep_last`` and those of ``keep``; return the folders that went.

    Damaged folders and what hornbook did not write stay where they are, and do not count.

    Args:
        folder: the folder of checkpoints; none is fine.
        keep_last: how many sound ones stay at least, from 1.
        keep: steps that stay in any case, as the best one.

    Raises:
        UserError: ``keep_last`` is below 1.
        StorageError: a checkpoint cannot be removed; it then does not look like one any more, or is still whole.
    """
    if keep_last < 1:
        raise UserError(f"keep_last is {keep_last}; expected at least 1, so that a checkpoint is left")
    _remove_leftovers(folder)
    sound = [(step, path) for step, path in committed(folder) if not path.is_symlink() and not verify(path)]
    spare = [path for step, path in sound[:-keep_last] if step not in keep]
    for path in spare:
        storage.remove_tree(_hide(path))
    return spare


def set_aside(folder: Path, step: int) -> Path | None:
    """Rename the checkpoint of ``step`` to ``step-....diverged``, which no reader takes for a checkpoint.

    Returns:
        Its new path, where an earlier one is replaced; None if there is no such checkpoint.

    Raises:
        StorageError: it cannot be renamed.
    """
    path = folder_of(folder, step)
    if not os.path.lexists(path):
        return None
    aside = path.with_name(f"{path.name}.diverged")
    storage.remove_tree(aside)
    storage.rename(path, aside)
    return aside


def _files(contents: Contents, ranks: Sequence[Shards]) -> dict[str, _File]:
    """Return the files of a checkpoint by name; tensors become bytes only as they are written."""
    files: dict[str, _File] = {}
    for rank, groups in enumerate(ranks):
        for group, shards in groups.items():
            encoded = encode({name: shard.values for name, shard in shards.items()})
            files[_file_of(group, rank)] = _File("tensors", encoded.size, encoded.chunks)
    files |= _plain("document", {f"{name}.json": dump_json(value) for name, value in contents.documents.items()})
    files |= _plain("file", contents.files)
    num_names = sum(map(len, ranks)) + len(contents.documents) + len(contents.files)
    if len(files) < num_names or not all(map(is_plain_name, files)):
        raise CheckpointError(f"a checkpoint cannot hold the files {sorted(files)}; names must be plain and differ")
    return files


def _layouts(ranks: Sequence[Shards]) -> Layouts:
    """Return how the tensors are stored; refuse boxes that do not make them up."""
    layouts: Layouts = {}
    for rank, groups in enumerate(ranks):
        for group, shards in groups.items():
            tensors = layouts.setdefault(group, {})
            for name, shard in shards.items():
                empty = Layout(dtype=DTYPES[str(shard.values.dtype)], shape=shard.shape, boxes={})
                known = tensors.get(name, empty)
                if replace(known, boxes={}) != empty:
                    raise CheckpointError(f"tensor {name} has another shape or dtype on rank {rank} than before it")
                box = Box(shard.begin, tuple(shard.values.shape))
                tensors[name] = replace(known, boxes={**known.boxes, _file_of(group, rank): box})
    for tensors in layouts.values():
        for name, layout in tensors.items():
            if problem := layout.problem():
                raise CheckpointError(f"tensor {name} cannot be saved: {problem}")
    return layouts


def _file_of(group: str, rank: int) -> str:
    return f"{group}-{rank:05d}.safetensors"


def _plain(kind: Kind, data: Mapping[str, bytes]) -> dict[str, _File]:
    return {name: _File(kind, len(content), (content,)) for name, content in data.items()}


def _write(temporary: Path, step: int, files: Mapping[str, _File], layouts: Layouts) -> None:
    storage.make_directory(temporary, exist_ok=False)
    entries = {}
    for name, file in files.items():
        written = storage.write_file(temporary / name, file.chunks)
        entries[name] = Entry(kind=file.kind, size=written.size, sha256=written.sha256)
    storage.write_file(temporary / MANIFEST, Manifest(step=step, files=entries, tensors=layouts).to_bytes())


def _hide(path: Path) -> Path:
    """Give a folder a name that no reader takes for a checkpoint, so that removing it may be cut off anywhere."""
    aside = path.with_name(f"{path.name}.tmp-{os.getpid()}-old")
    storage.rename(path, aside)
    return aside


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary folders of processes that are gone; one that cannot be removed is no reason to stop."""
    with suppress(StorageError):
        for path in _leftovers(folder, process_is_alive):
            storage.remove_tree(path)


def _leftovers(folder: Path, is_alive: Callable[[int], bool]) -> list[Path]:
    if not folder.is_dir():
        return []
    with storage_errors("read the folder", folder):
        matches = [(path, _TEMPORARY.fullmatch(path.name)) for path in sorted(folder.iterdir())]
    return [path for path, match in matches if match and not is_alive(int(match[1]))]
