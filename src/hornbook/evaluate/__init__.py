"""Numbers that name their convention."""

from hornbook.evaluate import bits_per_byte  # registers its task
from hornbook.evaluate.tasks import Row, TaskInput, register_task, run_tasks, task_names

__all__ = ["Row", "TaskInput", "bits_per_byte", "register_task", "run_tasks", "task_names"]
