"""All evaluations of a run, in ``evaluation.json``.

    {"tasks": [{"name": "bits_per_byte", "rows": [{"metric": "bits_per_byte", "value": 1.79, ...}, ...],
                "data": {"name": "corpora/mine", "split": "validation", "fingerprint": "9f86..."},
                "options": {"window": null, "overlap": null, "max_sequences": null, "compute": "bf16"},
                "checkpoint": "runs/mine/checkpoints/step-00000500", "step": 500, "date": "2026-11-22T08:00:00+00:00"}]}

``data`` identifies the scored text, so that no result is mistaken for one on the run's own validation split. Options
with the task's default are null; a text that is not a file or store has no ``fingerprint``. Files of earlier versions,
which had only names, rows and one checkpoint for all, can be read; what they lack is missing here, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hornbook.errors import DataError
from hornbook.storage.files import replace_file
from hornbook.storage.json_files import dump_json, read_json
from hornbook.track.units import number

Evaluation = dict[str, Any]
"""The result of one task: an entry of ``tasks`` above."""

_CONVENTION = ("window", "overlap", "max_sequences")


def read_evaluations(path: Path) -> list[Evaluation]:
    """Return the evaluations in chronological order; none without a file.

    Raises:
        DataError: the file is malformed.
        StorageError: it cannot be read.
    """
    if not path.is_file():
        return []
    content = read_json(path, "the evaluation", follow=False)
    tasks = content.get("tasks") if isinstance(content, dict) else None
    if not isinstance(tasks, list) or not all(map(_is_evaluation, tasks)):
        raise DataError(
            f'{path}: expected {{"tasks": [{{"name": ..., "rows": [...]}}]}}; remove the file and evaluate again'
        )
    shared = {key: content[key] for key in ("checkpoint", "step") if key in content}
    return [shared | task for task in tasks]


def add_evaluations(path: Path, new: Iterable[Evaluation]) -> None:
    """Add evaluations to a file; one with the same task, text, options and checkpoint replaces the earlier one.

    Raises:
        DataError: the existing file is malformed; it is not changed.
        StorageError: it cannot be read or written.
    """
    kept = read_evaluations(path)
    for evaluation in new:
        kept = [earlier for earlier in kept if not _is_repeated(earlier, evaluation)] + [evaluation]
    replace_file(path, dump_json({"tasks": kept}))


def own_bits_per_byte(evaluations: Sequence[Evaluation], validation: str | None) -> Evaluation | None:
    """Return the newest evaluation of bits per byte on the run's validation split with default options.

    Args:
        evaluations: evaluations of a run.
        validation: fingerprint of the run's validation data, None if it has none.
    """
    own = [
        evaluation
        for evaluation in evaluations
        if evaluation.get("name") == "bits_per_byte"
        and validation is not None
        and _part(evaluation, "data").get("fingerprint") == validation
        and all(_part(evaluation, "options").get(name) is None for name in _CONVENTION)
        and value_of(evaluation, "bits_per_byte") is not None
    ]
    return max(reversed(own), key=lambda evaluation: number(evaluation, "step") or 0, default=None)


def value_of(evaluation: Evaluation, metric: str) -> float | None:
    """Return the first finite value of a metric; None if there is none."""
    values = (number(row, "value") for row in evaluation["rows"] if row.get("metric") == metric)
    return next((value for value in values if value is not None), None)


def text_of(evaluation: Mapping[str, Any]) -> str:
    """Return the name of the text that an evaluation scored: ``corpora/mine, validation split``."""
    data = _part(evaluation, "data")
    name, split = data.get("name"), data.get("split")
    if not isinstance(name, str):
        return "a text that was not recorded"
    return f"{name}, {split} split" if isinstance(split, str) else name


def options_of(evaluation: Mapping[str, Any]) -> str:
    """Return the options that differ from the task's defaults: ``window 128, overlap 0``."""
    options = _part(evaluation, "options")
    return ", ".join(
        f"{name.replace('_', ' ')} {options[name]}" for name in _CONVENTION if options.get(name) is not None
    )


def _is_evaluation(task: object) -> bool:
    rows = task.get("rows") if isinstance(task, dict) else None
    return isinstance(rows, list) and all(isinstance(row, dict) for row in rows)


def _is_repeated(earlier: Evaluation, later: Evaluation) -> bool:
    """Return whether two evaluations measured the same; for texts without a fingerprint, by their rows."""
    if _key(earlier) != _key(later):
        return False
    return "fingerprint" in _part(later, "data") or earlier["rows"] == later["rows"]


def _key(evaluation: Evaluation) -> tuple[object, ...]:
    checkpoint = Path(str(evaluation.get("checkpoint"))).name
    data = _part(evaluation, "data")
    text = data.get("fingerprint") or data.get("name")
    return (evaluation.get("name"), text, evaluation.get("options"), checkpoint, evaluation.get("step"))


def _part(evaluation: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = evaluation.get(key)
    return found if isinstance(found, dict) else {}
