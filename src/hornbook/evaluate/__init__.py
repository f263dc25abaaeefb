"""Numbers that name their convention."""

from hornbook.evaluate import bits_per_byte, classification, lambada, masked  # each registers its tasks
from hornbook.evaluate import squad_scores as squad
from hornbook.evaluate import wikitext_perplexity as wikitext
from hornbook.evaluate.evaluations import run_tasks
from hornbook.evaluate.tasks import Row, TaskInput, register_task, task_names

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
