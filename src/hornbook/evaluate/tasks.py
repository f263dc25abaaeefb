"""Evaluation tasks: a name, a function from a model to rows, and each row says by what convention it was measured.

::

    bits_per_byte = Task -> [Row("bits_per_byte", 1.83, "every held-out byte scored, ..."), Row("gzip -9", 1.96, ...)]

A comparison is worth nothing without its convention, so a row cannot be made without one.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from hornbook.checkpoint.restore import LoadedModel
from hornbook.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of an evaluation."""

    metric: str
    value: float
    convention: str


@dataclass(frozen=True, kw_only=True)
class TaskInput:
    """What a task gets."""

    loaded: LoadedModel
    data: str | None
    """The path that the user gave, or None for the validation store of the run."""
    device: torch.device
    micro_batch_size: int


Task = Callable[[TaskInput], list[Row]]
_TASKS: dict[str, Task] = {}


def register_task(name: str) -> Callable[[Task], Task]:
    """Return a decorator that makes a function available as ``hornbook evaluate --tasks NAME``."""

    def add(task: Task) -> Task:
        _TASKS[name] = task
        return task

    return add


def task_names() -> list[str]:
    """Return the names of all registered tasks."""
    return sorted(_TASKS)


def run_tasks(names: list[str], given: TaskInput) -> dict[str, Any]:
    """Run tasks by name and return ``{"step", "checkpoint", "tasks": [{"name", "rows"}]}``, ready for JSON.

    Raises:
        UserError: a name is not registered.
    """
    for name in names:
        if name not in _TASKS:
            raise UserError(f"there is no task {name!r}; the tasks are {', '.join(task_names())}")
    tasks = [{"name": name, "rows": [asdict(row) for row in _TASKS[name](given)]} for name in names]
    return {"step": given.loaded.step, "checkpoint": str(given.loaded.path), "tasks": tasks}
