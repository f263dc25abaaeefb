"""The state and progress of a run, derived from its lock, its last session and its checkpoints.

environment.json   last session ended -> finished or diverged     checkpoints/step-00000124   saved after step 124
lock               held               -> running
neither            at its last step   -> finished, else stopped: by a signal, by an error, or killed
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from hornbook.checkpoint.load import committed
from hornbook.checkpoint.manifest import MANIFEST, parse_step
from hornbook.config.recipe_files import IDENTITY
from hornbook.errors import HornbookError
from hornbook.storage.json_files import read_json
from hornbook.storage.system import is_locked
from hornbook.track.units import number

State: TypeAlias = Literal["running", "finished", "stopped", "diverged", "imported"]


def newest_checkpoint(folder: Path) -> tuple[int, Path] | None:
    """Return step and folder of a run's newest checkpoint, intact or not; None if it has none.

    Raises:
        StorageError: the folder of checkpoints cannot be read.
    """
    whole = [found for found in committed(folder / "checkpoints") if (found[1] / MANIFEST).is_file()]
    return whole[-1] if whole else None


def is_imported(folder: Path) -> bool:
    """Return whether the folder has only a model imported by ``hornbook checkpoint import``."""
    newest = newest_checkpoint(folder)
    return newest is not None and (newest[1] / "source.json").is_file() and not (folder / IDENTITY).exists()


def imported_recipe(folder: Path) -> dict[str, Any]:
    """Return model and objective of an imported model, else nothing; the rest of its recipe describes no training."""
    if not is_imported(folder):
        return {}
    newest = newest_checkpoint(folder)
    recipe = document_of(newest[1], "recipe") if newest else {}
    return {key: recipe[key] for key in ("model", "objective") if isinstance(recipe.get(key), dict)}


def is_run(folder: Path) -> bool:
    """Return whether a folder has a run, by its log or its recipe and environment, or an imported model."""
    if (folder / "metrics.jsonl").is_file():
        return True
    return ((folder / "recipe.toml").is_file() and (folder / "environment.json").is_file()) or is_imported(folder)


def run_of(checkpoint: Path) -> Path | None:
    """Return the folder of the run that contains a checkpoint, or None."""
    folder = checkpoint.parent.parent
    return folder if checkpoint.parent.name == "checkpoints" and is_run(folder) else None


def document_of(checkpoint: Path, name: str) -> dict[str, Any]:
    """Return a JSON document of a checkpoint, empty if it is missing or damaged, since others may be intact."""
    try:
        found = read_json(checkpoint / f"{name}.json", name)
    except HornbookError:
        return {}
    return found if isinstance(found, dict) else {}


def state_of(folder: Path, sessions: Sequence[Mapping[str, Any]], total_steps: int | None) -> State:
    """Return the state of a run.

    Args:
        folder: the run's folder.
        sessions: its starts, oldest first.
        total_steps: its length in steps, None if unknown.

    Raises:
        StorageError: the folder of checkpoints cannot be read.
    """
    ended = sessions[-1].get("ended") if sessions else None
    if ended == "finished":
        return "finished"
    if ended == "diverged":
        return "diverged"
    if is_locked(folder):
        return "running"
    if is_imported(folder):
        return "imported"
    newest = newest_checkpoint(folder)
    saved = newest[0] if newest else 0
    if total_steps is not None and saved >= total_steps:
        return "finished"
    set_aside = (path.name.removesuffix(".diverged") for path in (folder / "checkpoints").glob("step-*.diverged"))
    diverged = any((parse_step(name) or 0) > saved for name in set_aside)  # from older versions
    return "diverged" if diverged else "stopped"


def training_seconds(train: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the time of all sessions: where ``seconds`` decreases, a session that counts from zero began."""
    total, before = 0.0, None
    for row in train:
        seconds = number(row, "seconds")
        if seconds is None:
            continue
        if before is not None and seconds < before:
            total += before
        before = seconds
    return None if before is None else total + before


def seconds_left(row: Mapping[str, Any], total_steps: int) -> float | None:
    """Return the time left at the row's speed: (total - step) · (tokens / step) / tokens per second."""
    step, tokens, speed = (number(row, key) for key in ("step", "tokens", "tokens_per_second"))
    if not step or not tokens or not speed or speed < 0:
        return None
    return max(0.0, total_steps - step) * tokens / step / speed
