"""The names of evaluation tasks, known without importing torch."""

from collections.abc import Collection
from typing import Final

from hornbook.config.suggest import did_you_mean
from hornbook.errors import UserError

OWN_TASKS: Final = (
    "bits_per_byte",
    "classification",
    "lambada",
    "masked_lm",
    "pseudo_perplexity",
    "span",
    "wikitext103",
    "wikitext2",
)
"""The tasks of `hornbook.evaluate`, sorted."""


def refuse_unknown_task(name: str, known: Collection[str] = OWN_TASKS) -> None:
    """Raise UserError if a task is not among the ``known`` ones."""
    if name not in known:
        raise UserError(f"there is no task {name!r}, the tasks are {', '.join(known)}{did_you_mean(name, known)}")
