"""Runs as folders: found, summarized and held against each other.

    runs/demo/metrics.jsonl, recipe.toml, environment.json, evaluation.json
        ──summarize──► RunSummary(step=2000, best_validation_loss=2.91, ...)
        ──compare────► the summaries, and every recipe key whose value is not the same in all of them

Everything is read from the files, each time: there is no index that could be out of date. The price is that a list
reads every row of every run.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hornbook.errors import DataError, UserError
from hornbook.storage.json_files import read_bytes, read_json
from hornbook.track import environment, metrics
from hornbook.track.units import number

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """What a run folder holds, read once."""

    folder: Path
    rows: list[Row]
    recipe_text: str
    recipe: dict[str, Any]
    sessions: list[dict[str, Any]]
    tasks: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """The recipe's name, or the folder's."""
        name = self.recipe.get("name")
        return name if isinstance(name, str) and name else self.folder.resolve().name

    def of_kind(self, kind: str) -> list[Row]:
        """The rows of one kind: "train", "validation" or "task"."""
        return [row for row in self.rows if row.get("kind") == kind]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run in a line. Losses in nats per scored token, ``seconds`` of training; ``None`` where it was not measured."""

    name: str
    folder: str
    step: int
    total_steps: int | None
    tokens: int | None
    loss: float | None
    validation_loss: float | None
    best_validation_loss: float | None
    best_step: int | None
    bits_per_byte: float | None
    tokens_per_second: float | None
    seconds: float | None
    skipped_steps: int
    num_sessions: int
    started: str | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs side by side; ``differences`` maps a dotted recipe key to its value in each, ``None`` where not set."""

    runs: tuple[RunSummary, ...]
    differences: dict[str, tuple[object, ...]]


def find_runs(root: Path) -> list[Path]:
    """All run folders at or below ``root``, sorted; what lies inside a run, hidden folders and links are not entered.

    Raises:
        UserError: ``root`` is no folder.
    """
    if not root.is_dir():
        raise UserError(f"no folder {root} here: `hornbook train` makes the folder runs; or name another")
    found = []
    for folder, names, _ in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        if is_run(Path(folder)):
            found.append(Path(folder))
            names.clear()
    return sorted(found)


def is_run(folder: Path) -> bool:
    """Whether a training was begun there: it has a log, or a recipe and the environment that it ran in."""
    if (folder / "metrics.jsonl").is_file():
        return True
    return (folder / "recipe.toml").is_file() and (folder / "environment.json").is_file()


def read_run(folder: Path) -> RunFiles:
    """Reads a run folder; files that are not there yet are empty.

    Raises:
        UserError: there is no run.
        DataError: one of its files is malformed; names it.
        StorageError: one of its files cannot be read.
    """
    if not is_run(folder):
        raise UserError(f"no run in {folder}; expected a folder with metrics.jsonl, as `hornbook train` leaves")
    recipe = folder / "recipe.toml"
    recipe_text = read_bytes(recipe, "the recipe").decode("utf-8", "replace") if recipe.is_file() else ""
    return RunFiles(
        folder=folder,
        rows=metrics.read(folder / "metrics.jsonl"),
        recipe_text=recipe_text,
        recipe=_parse_recipe(recipe_text, recipe),
        sessions=environment.sessions(folder / "environment.json"),
        tasks=_tasks(folder / "evaluation.json"),
    )


def summarize(folder: Path) -> RunSummary:
    """A run in a line; errors as ``read_run``."""
    return summary_of(read_run(folder))


def summary_of(run: RunFiles) -> RunSummary:
    """The summary of a run that was read."""
    train, validation = run.of_kind("train"), run.of_kind("validation")
    losses = [(loss, int(row["step"])) for row in validation if (loss := number(row, "loss")) is not None]
    best, best_step = min(losses, default=(None, None))
    tokens, skipped = last(train, "tokens"), last(train, "skipped_steps")
    started = run.sessions[0].get("started") if run.sessions else None
    return RunSummary(
        name=run.name,
        folder=str(run.folder),
        step=max((int(row["step"]) for row in run.rows), default=0),
        total_steps=_total_steps(run),
        tokens=None if tokens is None else int(tokens),
        loss=last(train, "loss"),
        validation_loss=losses[-1][0] if losses else None,
        best_validation_loss=best,
        best_step=best_step,
        bits_per_byte=_bits_per_byte(run.tasks) or last(validation, "bits_per_byte"),
        tokens_per_second=_middle(number(row, "tokens_per_second") for row in train),
        seconds=training_seconds(train),
        skipped_steps=int(skipped or 0),
        num_sessions=len(run.sessions),
        started=started if isinstance(started, str) else None,
    )


def compare(folders: Sequence[Path]) -> Comparison:
    """Runs side by side, and where their recipes differ; errors as ``read_run``."""
    runs = [read_run(folder) for folder in folders]
    recipes = [flatten(run.recipe) for run in runs]
    keys = sorted({key for recipe in recipes for key in recipe})
    values = {key: tuple(recipe.get(key) for recipe in recipes) for key in keys}
    differing = {key: found for key, found in values.items() if any(value != found[0] for value in found[1:])}
    return Comparison(runs=tuple(summary_of(run) for run in runs), differences=differing)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"model": {"num_layers": 4}}`` -> ``{"model.num_layers": 4}``."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def last(rows: Iterable[Row], key: str) -> float | None:
    """The last finite value of a column."""
    return next((value for row in reversed(list(rows)) if (value := number(row, key)) is not None), None)


def training_seconds(train: Iterable[Row]) -> float | None:
    """The time of all sessions: ``seconds`` counts up, and where it falls, a session that counts anew began."""
    total, before = 0.0, None
    for row in train:
        seconds = number(row, "seconds")
        if seconds is None:
            continue
        if before is not None and seconds < before:
            total += before
        before = seconds
    return None if before is None else total + before


def _parse_recipe(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {error}; expected the TOML that `hornbook train` wrote; restore it") from error


def _tasks(path: Path) -> list[dict[str, Any]]:
    """The tasks of ``evaluation.json``, each with a ``name`` and a list of ``rows``; none without the file."""
    if not path.is_file():
        return []
    content = read_json(path, "the evaluation")
    tasks = content.get("tasks") if isinstance(content, dict) else None
    sound = isinstance(tasks, list) and all(
        isinstance(task, dict)
        and isinstance(task.get("rows"), list)
        and all(isinstance(row, dict) for row in task["rows"])
        for task in tasks
    )
    if not isinstance(tasks, list) or not sound:
        raise DataError(
            f'{path}: expected {{"tasks": [{{"name": ..., "rows": [...]}}]}}; run `hornbook evaluate` again'
        )
    return tasks


def _bits_per_byte(tasks: Iterable[dict[str, Any]]) -> float | None:
    rows = (row for task in tasks for row in task["rows"] if row.get("metric") == "bits_per_byte")
    return next((value for row in rows if (value := number(row, "value")) is not None), None)


def _total_steps(run: RunFiles) -> int | None:
    """The run's last step: what its last start made of its length or, where that is not recorded, the recipe's."""
    training = run.recipe.get("training")
    asked = training.get("steps") if isinstance(training, dict) else None
    found = (session.get("to_step") for session in reversed(run.sessions))
    return next((steps for steps in (*found, asked) if type(steps) is int and steps > 0), None)


def _middle(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return median(found) if found else None
