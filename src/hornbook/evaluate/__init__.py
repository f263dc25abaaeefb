"""Evaluation tasks: their table, and functions that measure metrics by a stated convention.

``run_tasks`` runs them by name and returns their metrics with the scored text, the options, the checkpoint and the
date, as `hornbook.track.evaluations` stores them.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hornbook.corpora.joined import join
from hornbook.errors import UserError
from hornbook.evaluate import bits_per_byte, classification, lambada, masked, tasks
from hornbook.evaluate import squad_scores as squad
from hornbook.evaluate import wikitext_perplexity as wikitext
from hornbook.evaluate.task_files import open_scored
from hornbook.evaluate.tasks import Row, Task, TaskInput, check_tasks, find_task, register_task, run_task, task_names
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
    """Run tasks by name, each once, and return ``{"step", "checkpoint", "tasks": [{"name", "rows", ...}]}``, for JSON.

    Raises:
        UserError: see `check_tasks`, before any computation, and `run_task`.
    """
    tasks = [*dict.fromkeys(tasks)]
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


__all__ = [
    "Row",
    "TaskInput",
    "bits_per_byte",
    "classification",
    "lambada",
    "masked",
    "register_task",
    "run_tasks",
    "squad",
    "task_names",
    "wikitext",
]

tasks.TASKS.update(
    bits_per_byte=Task(
        measure=bits_per_byte.bits_per_byte,
        check=bits_per_byte.read,
        models="decoder",
        lower=("bits_per_byte", "nats_per_token", "token_perplexity"),
        scores_held_out=True,
    ),
    classification=Task(
        measure=classification.classification,
        check=classification.read,
        models="any",
        lower=("cross_entropy",),
        higher=("accuracy", "macro_f1"),
        scores_held_out=True,
    ),
    lambada=Task(
        measure=lambada.lambada,
        check=lambada.read,
        models="decoder",
        lower=("last_word_perplexity", "last_token_perplexity"),
        higher=(
            "last_word_accuracy",
            "last_word_accuracy_filtered",
            "last_token_accuracy",
            "last_token_accuracy_filtered",
        ),
    ),
    masked_lm=Task(
        measure=masked.masked_lm,
        check=masked.read_masked,
        models="encoder",
        lower=("loss", "perplexity", "next_sentence_loss"),
        higher=("accuracy", "next_sentence_accuracy"),
        scores_held_out=True,
    ),
    pseudo_perplexity=Task(
        measure=masked.pseudo_perplexity,
        check=masked.read_copies,
        models="encoder",
        lower=("pseudo_perplexity", "nats_per_token"),
        scores_held_out=True,
    ),
    span=Task(
        measure=squad.span,
        check=squad.read,
        models="encoder",
        higher=("exact_match", "f1"),
        scores_held_out=True,
    ),
    wikitext103=Task(
        measure=partial(wikitext.measure, "wikitext103"), check=wikitext.read, models="decoder", lower=wikitext.METRICS
    ),
    wikitext2=Task(
        measure=partial(wikitext.measure, "wikitext2"), check=wikitext.read, models="decoder", lower=wikitext.METRICS
    ),
)
