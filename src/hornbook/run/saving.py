"""Save checkpoints in the foreground, or in the background of the training.

::

    foreground   step | write ............ | step
    background   step | copy | step   step   step | collect        the loop asks all ranks after each step
                         `--- write ............ '

In the background, a thread writes a copy in host memory, so a step waits only for the copy. There is one thread at a
time: the next save and the end of the run wait for the previous save. All ranks take part in a save, over connections
of their own (``world.aside``), in which they also agree on whether it failed.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from hornbook import checkpoint
from hornbook.errors import HornbookError, StorageError
from hornbook.parallel.world import World

Shards = dict[str, dict[str, checkpoint.Shard]]
Best = tuple[str, float | None, int | None]
_NOTHING_TO_SAVE = 0
"""Sent instead of the saving process's id on failure."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A rank's part of a checkpoint, and the checkpoints to keep; if its tensors are copies, training may continue."""

    contents: checkpoint.Contents
    held: Shards
    """Boxes of tensors of which this is the first rank."""
    best_before: Best
    """``best_by``, ``best_value`` and ``best_step`` if this save fails."""
    keep_last: int
    keep: tuple[int, ...]


class Saved(NamedTuple):
    """The result of a save; ``failed`` is the same on all ranks."""

    snapshot: Snapshot
    path: Path | None = None
    """The checkpoint's path, on the first rank."""
    error: HornbookError | None = None
    """Why this rank failed."""
    failed: list[int] = []
    warnings: list[str] = []


@dataclass(kw_only=True)
class Saver:
    """Saves the checkpoints of a run into ``folder``, one at a time."""

    world: World
    folder: Path
    require_folder: Callable[[], None]
    pending: "Future[Saved] | None" = field(default=None, init=False)
    """The last started save, until ``finish`` collects it."""
    _written: dict[Path, checkpoint.Stamps] = field(default_factory=dict, init=False)
    """The checkpoints that this process has saved and not removed."""

    def start(self, snapshot: Snapshot, *, behind: bool) -> None:
        """Save ``snapshot``; ``finish`` must have collected the previous save.

        Args:
            snapshot: the state after the current step.
            behind: return once the tensors are copied, and write in a thread.
        """
        assert self.pending is None, "two checkpoints at once"
        pending: Future[Saved] = Future()
        if behind:
            held = {
                group: {name: replace(own, values=own.values.to("cpu", copy=True)) for name, own in shards.items()}
                for group, shards in snapshot.held.items()
            }
            copy = replace(snapshot, held=held)
            # a daemon thread, so that an immediate exit does not wait; a commit is a single rename
            Thread(target=self._settle, args=(pending, copy), name="hornbook-checkpoint", daemon=True).start()
        else:
            self._settle(pending, snapshot)
        self.pending = pending

    def finish(self) -> Saved | None:
        """Wait for the pending save and return its result; None if there is none.

        Raises:
            Exception: any error that is not a HornbookError.
        """
        if self.pending is None:
            return None
        pending, self.pending = self.pending, None
        return pending.result()

    def _settle(self, pending: "Future[Saved]", snapshot: Snapshot) -> None:
        try:
            pending.set_result(self._save(snapshot))
        except (HornbookError, RuntimeError) as error:  # a rank is lost; whoever collects the save explains it
            pending.set_exception(error)
        except Exception as error:
            pending.set_exception(error)
            raise

    def _save(self, snapshot: Snapshot) -> Saved:
        saved = Saved(snapshot)
        try:
            if self.world.is_first:
                saved = self._prune(saved._replace(path=self._commit(snapshot)))
            else:
                self._save_share(snapshot)
        except HornbookError as error:
            saved = saved._replace(error=error)
        self.world.aside.barrier()
        return saved._replace(failed=self.world.aside.ranks_where(saved.error is not None))

    def _commit(self, snapshot: Snapshot) -> Path:
        """Write the checkpoint while the other ranks write their boxes."""
        asked: list[Path] = []
        ranks = self.world.aside

        @contextmanager
        def others(temporary: Path) -> Iterator[None]:
            asked.append(temporary)
            ranks.from_first(os.getpid())  # it is in the folder's name
            try:
                yield
            finally:
                ranks.barrier()
                failed = ranks.ranks_where(False)
            if failed:
                raise StorageError(f"rank {failed[0]} could not save its part of the checkpoint; see its error")

        try:
            self.require_folder()
            return checkpoint.save(self.folder, snapshot.contents, [snapshot.held], others)
        finally:
            if not asked:
                ranks.from_first(_NOTHING_TO_SAVE)

    def _save_share(self, snapshot: Snapshot) -> None:
        """Write this rank's boxes into the first rank's checkpoint."""
        ranks, step = self.world.aside, snapshot.contents.step
        process = ranks.from_first(0)
        if process == _NOTHING_TO_SAVE:
            return
        failed = True
        try:
            temporary = checkpoint.temporary_of(self.folder, step, process)
            checkpoint.save_share(temporary, step, ranks.rank, snapshot.held)
            failed = False
        finally:
            ranks.barrier()
            ranks.ranks_where(failed)

    def _prune(self, saved: Saved) -> Saved:
        snapshot = saved.snapshot
        assert saved.path is not None, "it was saved just now"
        self._written[saved.path] = checkpoint.stamps(saved.path)
        try:
            for path in checkpoint.prune(self.folder, snapshot.keep_last, snapshot.keep, self._written):
                self._written.pop(path, None)
        except StorageError as error:
            return saved._replace(warnings=[f"old checkpoints could not be removed: {error}"])
        return saved
