"""Save and prune checkpoints so that at every moment a checkpoint's folder is either complete or not named like one.

    save    step-00001200.tmp-4711/  model-00000.safetensors, ..., manifest.json last; fsync of each, then of the folder
            -> rename to step-00001200/ (the commit) -> fsync parent
    share   step-00001200.tmp-4711/  model-00003.safetensors, share-00003.json: rank 3's boxes of sharded tensors, which
            the saving rank merges into the manifest
    prune   step-00000400/ -> rename to step-00000400.tmp-4711-old/ -> fsync parent -> remove

There is no ``latest`` pointer and no cached state: the committed checkpoints are those on disk. A process that dies
leaves at most a ``.tmp-`` folder, which the next save or prune removes once its process has ended. Only one process at
a time may save into a folder; ``storage.lock_folder`` on the run ensures it. A folder with anything that no save writes
is never removed: an intact checkpoint has exactly its manifest's files, and other folders are kept under another name.
The price: pruning verifies all checkpoints, since a damaged one must not count as kept; it reads those again that this
process has not written, or that have changed since.
"""

import logging
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, NamedTuple

import hornbook.storage as storage
from hornbook.checkpoint.load import committed
from hornbook.checkpoint.manifest import (
    MANIFEST,
    Entry,
    Kind,
    Manifest,
    Stamps,
    folder_of,
    is_plain_name,
    parse_manifest,
    read_manifest,
    verify,
)
from hornbook.checkpoint.tensors import DTYPES, Box, Contents, Layout, Shard, encode
from hornbook.errors import CheckpointError, HornbookError, StorageError, UserError
from hornbook.storage.json_files import dump_json
from hornbook.storage.removal import has_only_files
from hornbook.storage.system import perform, process_is_alive, require_space, storage_errors

_logger = logging.getLogger("hornbook.checkpoint")
_TEMPORARY: Final = re.compile(r"step-[0-9]{8,18}\.tmp-([0-9]{1,10})(-old)?")
_SHARE: Final = re.compile(r"share-[0-9]{5,10}\.json")
_WRITTEN: Final = re.compile(r"[a-z_]+-[0-9]{5,10}\.safetensors|[a-z_]+\.json|share-[0-9]{5,10}\.json")
"""Names of a checkpoint's files, if no manifest lists them."""
Shards = Mapping[str, Mapping[str, Shard]]
"""The shards of one rank, by group and name."""
Layouts = dict[str, dict[str, Layout]]
_SLACK_BYTES: Final = 1 << 20
"""For the manifest, the folder and the file system's overhead."""


class _File(NamedTuple):
    """A file to be written."""

    kind: Kind
    size: int
    chunks: Iterable[storage.BytesLike]


def save(
    folder: Path,
    contents: Contents,
    ranks: Sequence[Shards] = (),
    others: Callable[[Path], AbstractContextManager[None]] | None = None,
) -> Path:
    """Commit a checkpoint into a folder of checkpoints and return its path.

    An intact checkpoint of that step is left unchanged; a damaged one is replaced. On an error nothing is committed,
    and new folders are removed if possible.

    Args:
        folder: the folder of checkpoints, such as ``runs/demo/checkpoints``; created if missing.
        contents: what to save; its tensors must not change meanwhile.
        ranks: the boxes of each rank, instead of ``contents.tensors``; each rank's become files of their own.
        others: context manager, called with the temporary folder, in which the other processes write their boxes with
            ``save_share``.

    Raises:
        StorageError: the disk is full (also checked beforehand), read-only or failing.
        CheckpointError: a tensor or a name cannot be stored, or boxes do not cover their tensor.
    """
    final = folder_of(folder, contents.step)
    _remove_leftovers(folder)
    if os.path.lexists(final) and not verify(final):
        return final
    groups = contents.tensors.items()
    shards = ranks or [{group: {name: Shard.whole(tensors[name]) for name in tensors} for group, tensors in groups}]
    files, layouts = _files(contents, shards), _layouts(shards)
    if others is None:
        _refuse_gaps(layouts)
    require_space(folder, sum(file.size for file in files.values()) + _SLACK_BYTES)
    is_new = not os.path.lexists(folder)
    temporary = temporary_of(folder, contents.step, os.getpid())
    try:
        storage.make_directory(folder)
        storage.make_directory(temporary, exist_ok=False)
        with storage.FileGroup(temporary) as group:
            with others(temporary) if others else nullcontext():
                entries = _write(group, files)
            if others is not None:
                entries, layouts = _take_shares(temporary, entries, layouts)
                _refuse_gaps(layouts)
            manifest = Manifest(step=contents.step, files=entries, tensors=layouts).to_bytes()
            group.write(MANIFEST, [manifest])
            parse_manifest(manifest, MANIFEST)  # while files are synced: one that cannot be read must not be committed
        aside = _hide(final) if os.path.lexists(final) else None
        storage.commit_directory(temporary, final)
    except BaseException:
        with suppress(StorageError):
            if has_only_files(temporary):
                storage.remove_tree(temporary)
        with suppress(OSError):  # so that a failed import leaves no empty folders
            if is_new:
                perform("unlink", folder, folder.rmdir)
        raise
    if aside:
        with suppress(StorageError):
            _remove_or_keep(aside, final)
    return final


def save_share(temporary: Path, step: int, rank: int, shards: Shards) -> None:
    """Write a non-saving rank's boxes into the temporary folder of a checkpoint.

    Raises:
        StorageError: it cannot be written.
        CheckpointError: a tensor cannot be stored.
    """
    held = {group: tensors for group, tensors in shards.items() if tensors}
    if held:
        files = _tensor_files(held, rank)
        require_space(temporary, sum(file.size for file in files.values()) + _SLACK_BYTES)
        with storage.FileGroup(temporary) as group:
            manifest = Manifest(step=step, files=_write(group, files), tensors=_layouts([held], rank))
            group.write(f"share-{rank:05d}.json", [manifest.to_bytes()])


def temporary_of(folder: Path, step: int, process: int) -> Path:
    """Return the temporary folder in which ``process`` (a process id) writes the checkpoint of ``step``."""
    final = folder_of(folder, step)
    return final.with_name(f"{final.name}.tmp-{process}")


def prune(
    folder: Path, keep_last: int, keep: Collection[int] = (), known: Mapping[Path, Stamps] | None = None
) -> list[Path]:
    """Remove all intact checkpoints but the newest ``keep_last`` and those in ``keep``; return the removed folders.

    Damaged checkpoints and other entries are neither removed nor counted.

    Args:
        folder: the folder of checkpoints; it may be missing.
        keep_last: number of newest intact checkpoints to keep, at least 1.
        keep: further steps to keep, such as the best one.
        known: ``stamps`` of checkpoints after ``save`` returned them; what has them still is not read again.

    Raises:
        UserError: ``keep_last`` is below 1.
        StorageError: a checkpoint cannot be removed; it is then still complete, or no longer named like one.
    """
    if keep_last < 1:
        raise UserError(f"keep_last is {keep_last}; expected at least 1, so that a checkpoint remains")
    _remove_leftovers(folder)
    plain = [(step, path) for step, path in committed(folder) if not path.is_symlink()]
    sound = [(step, path) for step, path in plain if not verify(path, known=(known or {}).get(path, {}))]
    spare = [path for step, path in sound[:-keep_last] if step not in keep]
    for path in spare:
        storage.remove_tree(_hide(path))
    return spare


def set_aside(folder: Path, step: int) -> Path | None:
    """Rename the checkpoint of ``step`` to ``step-....diverged``, which is not a checkpoint's name.

    Returns:
        Its new path (an earlier checkpoint there is replaced); None if there is no such checkpoint.

    Raises:
        StorageError: it cannot be renamed.
    """
    path = folder_of(folder, step)
    if not os.path.lexists(path):
        return None
    aside = path.with_name(f"{path.name}.diverged")
    if os.path.lexists(aside):
        _remove_or_keep(aside, aside)
    storage.rename(path, aside)
    return aside


def _files(contents: Contents, ranks: Sequence[Shards]) -> dict[str, _File]:
    """Return the files of a checkpoint by name; tensors are encoded while they are written."""
    files: dict[str, _File] = {}
    for rank, groups in enumerate(ranks):
        files |= _tensor_files(groups, rank)
    files |= _plain("document", {f"{name}.json": dump_json(value) for name, value in contents.documents.items()})
    files |= _plain("file", contents.files)
    num_names = sum(map(len, ranks)) + len(contents.documents) + len(contents.files)
    if len(files) < num_names or not all(map(is_plain_name, files)):
        raise CheckpointError(f"a checkpoint cannot have the files {sorted(files)}; names must be plain and distinct")
    return files


def _tensor_files(groups: Shards, rank: int) -> dict[str, _File]:
    files = {}
    for group, shards in groups.items():
        encoded = encode({name: shard.values for name, shard in shards.items()})
        files[_file_of(group, rank)] = _File("tensors", encoded.size, encoded.chunks)
    return files


def _layouts(ranks: Sequence[Shards], first: int = 0) -> Layouts:
    """Return the layouts of the tensors of ranks numbered from ``first``."""
    layouts: Layouts = {}
    for rank, groups in enumerate(ranks, first):
        for group, shards in groups.items():
            stored = {
                name: Layout(
                    dtype=DTYPES[str(shard.values.dtype)],
                    shape=shard.shape,
                    boxes={_file_of(group, rank): Box(shard.begin, tuple(shard.values.shape))},
                )
                for name, shard in shards.items()
            }
            _add(layouts, group, stored)
    return layouts


def _add(layouts: Layouts, group: str, stored: Mapping[str, Layout]) -> None:
    """Add boxes of a group's tensors to ``layouts``."""
    tensors = layouts.setdefault(group, {})
    for name, layout in stored.items():
        known = tensors.get(name, replace(layout, boxes={}))
        if (known.dtype, known.shape) != (layout.dtype, layout.shape):
            raise CheckpointError(
                f"tensor {name} has another shape or dtype in {min(layout.boxes)} than in other files"
            )
        tensors[name] = replace(known, boxes={**known.boxes, **layout.boxes})


def _refuse_gaps(layouts: Layouts) -> None:
    """Raise CheckpointError if the boxes of a tensor do not cover it."""
    for tensors in layouts.values():
        for name, layout in tensors.items():
            if problem := layout.problem():
                raise CheckpointError(f"tensor {name} cannot be saved: {problem}")


def _take_shares(temporary: Path, entries: dict[str, Entry], layouts: Layouts) -> tuple[dict[str, Entry], Layouts]:
    """Return the files and boxes of all ranks, and remove the other ranks' share files."""
    with storage_errors("read the folder", temporary):
        names = sorted(path.name for path in temporary.iterdir() if _SHARE.fullmatch(path.name))
    for name in names:
        share = read_manifest(temporary, name)
        entries = {**entries, **share.files}
        for group, stored in (share.tensors or {}).items():
            _add(layouts, group, stored)
        storage.remove_file(temporary / name)
    return entries, layouts


def _file_of(group: str, rank: int) -> str:
    return f"{group}-{rank:05d}.safetensors"


def _plain(kind: Kind, data: Mapping[str, bytes]) -> dict[str, _File]:
    return {name: _File(kind, len(content), (content,)) for name, content in data.items()}


def _write(group: storage.FileGroup, files: Mapping[str, _File]) -> dict[str, Entry]:
    for name, file in files.items():
        group.write(name, file.chunks)
    return {name: Entry(kind=files[name].kind, **asdict(written)) for name, written in group.written().items()}


def _hide(path: Path) -> Path:
    """Rename a folder to a non-checkpoint name, so that its removal may be interrupted at any point."""
    aside = path.with_name(f"{path.name}.tmp-{os.getpid()}-old")
    storage.rename(path, aside)
    return aside


def _remove_or_keep(folder: Path, name: Path) -> None:
    """Remove a folder that once was a checkpoint called ``name``, but keep one with files that no save has written."""
    if _is_all_ours(folder):
        storage.remove_tree(folder)
        return
    kept = name.with_name(f"{name.name}.kept-{secrets.token_hex(4)}")
    storage.rename(folder, kept)
    _logger.warning("%s was replaced; its old content has other files, too, and is kept as %s", name, kept.name)


def _is_all_ours(folder: Path) -> bool:
    """Return whether everything in a folder was written by saves: plain files of this user with their names."""
    try:
        listed = set(read_manifest(folder).files) | {MANIFEST}
    except HornbookError:
        listed = set()
    return has_only_files(folder, lambda name: name in listed or _WRITTEN.fullmatch(name) is not None)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary folders of processes that have ended; ignore those that cannot be removed."""
    if not folder.is_dir():
        return
    with suppress(StorageError):
        with storage_errors("read the folder", folder):
            matches = [(path, _TEMPORARY.fullmatch(path.name)) for path in sorted(folder.iterdir())]
        for path, match in matches:
            if match and not process_is_alive(int(match[1])) and has_only_files(path):
                storage.remove_tree(path)
