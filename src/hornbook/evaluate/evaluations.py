"""Run tasks by name, and record with their metrics the scored text, the options, the checkpoint and the date.

``hornbook.track.evaluations`` stores these records.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hornbook.corpora.joined import join
from hornbook.errors import UserError
from hornbook.evaluate.held_out import open_scored
from hornbook.evaluate.tasks import TaskInput, check_tasks, find_task, run_task
from hornbook.parallel.device import dtype_name
from hornbook.samples.encoder_sources import HELD_OUT_SEED
from hornbook.samples.instances import holds_instances, open_instances
from hornbook.storage.files import sha256_file


@dataclass(frozen=True, kw_only=True)
class ScoredData:
    """A scored text; unknown fields are None."""

    name: str | None
    """See `text_name`."""
    split: str | None = None
    """A store's split: "train" or "validation"."""
    fingerprint: str | None = None
    """A hash of the content; for a store, the one by which a resumed run recognizes its data."""


def text_name(task: str, given: TaskInput) -> str | None:
    """Return the path of the text that a task scores, or the corpora whose held-out part it is; None if unknown."""
    data = given.loaded.recipe.data
    own = (data.validation or ", ".join(data.train) or None) if find_task(task).scores_held_out else None
    return given.data or own


def scored_data(task: str, given: TaskInput) -> ScoredData:
    """Describe the text that a task scores for an input that has passed the task's check."""
    name = text_name(task, given)
    path = Path(name) if name else None
    if name is None or path is None:
        return ScoredData(name=None)
    if holds_instances(name):
        return ScoredData(name=name, fingerprint=open_instances(name, seed=HELD_OUT_SEED).fingerprint)
    if path.is_file() and path.suffix not in (".bin", ".idx"):
        return ScoredData(name=name, fingerprint=sha256_file(path))
    try:
        stores = open_scored(given)
    except UserError:  # a custom task's data may be anything
        return ScoredData(name=name)
    joined, splits = join(stores), {store.manifest.split for store in stores if store.manifest}
    return ScoredData(
        name=name,
        split=splits.pop() if len(splits) == 1 else None,
        fingerprint=joined.fingerprint if joined else None,
    )


def run_tasks(tasks: Sequence[str], given: TaskInput, data: Mapping[str, str]) -> dict[str, Any]:
    """Run tasks by name and return ``{"step", "checkpoint", "tasks": [{"name", "rows", ...}]}``, for JSON.

    Raises:
        UserError: see `check_tasks`, before any computation, and `run_task`.
    """
    check_tasks(tasks, given, data)
    measured = [_evaluate(name, replace(given, data=data.get(name))) for name in tasks]
    return {"step": given.loaded.step, "checkpoint": str(given.loaded.path), "tasks": measured}


def _evaluate(name: str, given: TaskInput) -> dict[str, Any]:
    rows, loaded = run_task(name, given), given.loaded
    return {
        "name": name,
        "rows": [row.as_json() for row in rows],
        "data": {key: value for key, value in asdict(scored_data(name, given)).items() if value is not None},
        "options": {
            "window": given.window,
            "overlap": given.overlap,
            "max_sequences": given.max_sequences,
            "compute": dtype_name(loaded.model.embedding.compute_dtype),
        },
        "step": loaded.step,
        "checkpoint": str(loaded.path),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
