"""What a checkpoint costs: a save beside a plain write of the same bytes, and what one in the background takes.

::

    plain    write .......                        the bytes that a save wrote, as files
    synced   write ....... sync ...
    save     write and hash ......... sync ... manifest, rename, prune
    steps    step step step step                  beside none, and beside a save in the background
"""

import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from hornbook.checkpoint import Contents
from hornbook.config import Recipe
from hornbook.config.recipe import recipe_to_dict
from hornbook.engine.state import TrainState
from hornbook.measure.throughput import hornbook_training
from hornbook.parallel.world import World
from hornbook.run.saving import Saver, Snapshot

STEPS_BETWEEN: Final = 100
"""Steps over which the cost of a save in the background is spread."""


@dataclass(frozen=True, kw_only=True)
class SaveSpeed:
    """Medians in seconds; see the module."""

    num_bytes: int
    """Of a checkpoint."""
    plain_seconds: float
    synced_seconds: float
    save_seconds: float
    step_seconds: float
    background_seconds: float
    """By which a save in the background delays the steps beside it, its copy of the tensors included."""

    @property
    def overhead(self) -> float:
        """What a save takes beyond a synced write of the same bytes, as a share of that."""
        return self.save_seconds / self.synced_seconds - 1.0

    @property
    def background_share(self) -> float:
        """What a save in the background takes from ``STEPS_BETWEEN`` steps."""
        return self.background_seconds / (STEPS_BETWEEN * self.step_seconds)


def measure_saves(recipe: Recipe, world: World, folder: Path, *, rounds: int) -> SaveSpeed:
    """Time saves of a training on random tokens, after a warm-up, alternating in ``rounds`` rounds.

    Args:
        recipe: its ``model.vocab_size`` must be set.
        world: of one process.
        folder: empty, on the disk to measure; it is empty afterwards.
        rounds: number of rounds.

    Raises:
        StorageError: a save failed.
    """
    state, step = hornbook_training(recipe, world)
    saves = _Saves(recipe, state, Saver(world=world, folder=folder / "checkpoints", require_folder=lambda: None))
    step_seconds = min(_seconds(step) for _ in range(3))
    files = [file.read_bytes() for file in sorted(saves.save().iterdir())]
    num_steps = 1 + math.ceil(_seconds(saves.save) / step_seconds)  # so that a save ends before the last of them

    def steps() -> None:
        for _ in range(num_steps):
            step()

    def steps_beside_a_save() -> None:
        saves.start(behind=True)
        steps()
        saves.finish()

    kinds = (
        partial(_write, folder / "plain", files, syncs=False),
        partial(_write, folder / "plain", files, syncs=True),
    )
    rows = [[_seconds(call) for call in (*kinds, saves.save, steps, steps_beside_a_save)] for _ in range(1 + rounds)]
    plain, synced, saved, alone, beside = map(median, zip(*rows[1:], strict=True))
    shutil.rmtree(folder / "checkpoints")
    return SaveSpeed(
        num_bytes=sum(map(len, files)),
        plain_seconds=plain,
        synced_seconds=synced,
        save_seconds=saved,
        step_seconds=alone / num_steps,
        background_seconds=beside - alone,
    )


@dataclass
class _Saves:
    recipe: Recipe
    state: TrainState
    saver: Saver
    number: int = 0

    def start(self, *, behind: bool) -> None:
        self.number += 1
        documents = {"state": self.state.to_json(), "recipe": recipe_to_dict(self.recipe)}
        contents = Contents(step=self.number, tensors={}, documents=documents, files={})
        held, best = self.state.home.tensors(), ("", None, None)
        self.saver.start(Snapshot(contents=contents, held=held, best_before=best, keep_last=2, keep=()), behind=behind)

    def finish(self) -> Path:
        saved = self.saver.finish()
        assert saved is not None, "it was started"
        if saved.error is not None:
            raise saved.error
        assert saved.path is not None, "this is the first rank"
        return saved.path

    def save(self) -> Path:
        self.start(behind=False)
        return self.finish()


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _write(folder: Path, files: list[bytes], *, syncs: bool) -> None:
    """Write files into a new folder, and remove it; the removal, a few microseconds, counts."""
    folder.mkdir()
    for number, content in enumerate(files):
        with (folder / str(number)).open("wb") as file:
            file.write(content)
            if syncs:
                file.flush()
                os.fsync(file.fileno())
    shutil.rmtree(folder)
