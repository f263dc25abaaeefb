"""What the tasks of fine-tuned models share: which file is scored, and by what rules."""

from typing import TypeVar

from hornbook.config import LabelledConfig
from hornbook.errors import UserError
from hornbook.evaluate.tasks import TaskInput

Learned = TypeVar("Learned", bound=LabelledConfig)


def data_of(given: TaskInput) -> str:
    """Return the path of the file that was given, or else of the run's validation file.

    Raises:
        UserError: neither is known.
    """
    if path := given.data or given.loaded.recipe.data.validation:
        return path
    raise UserError(
        f"{given.loaded.path} has no validation file to score (data.validation): name a labelled file by `--data FILE` "
        "(in a recipe by evaluation.task_data)"
    )


def objective_of(given: TaskInput, kind: type[Learned], lacks: str) -> Learned:
    """Return what the model learned.

    Raises:
        UserError: it is not of this kind; ``lacks`` says what the model cannot do.
    """
    objective = given.loaded.recipe.objective
    if not isinstance(objective, kind):
        raise UserError(
            f"{given.loaded.path} learned {objective.name!r} and {lacks}: fine-tune it with "
            f"--objective.name {kind.name}, see docs/fine-tuning.md"
        )
    return objective
