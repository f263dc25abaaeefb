"""What the tasks of fine-tuned models share: which file is scored, and batches of its sequences."""

from collections.abc import Iterator
from typing import TypeVar

from hornbook.config import LabelledConfig
from hornbook.errors import UserError
from hornbook.evaluate.tasks import TaskInput
from hornbook.samples.batches import Batch
from hornbook.samples.layout import lay_out
from hornbook.samples.sequences import TokenSequence

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


def laid_out(given: TaskInput, sequences: list[TokenSequence]) -> Iterator[Batch]:
    """Yield batches, without padding on a CPU; nothing random happens in them."""
    size = given.micro_batch_size
    for start in range(0, len(sequences), size):
        yield lay_out(
            sequences[start : start + size],
            width=given.window_length,
            layout="unpadded" if given.device.type == "cpu" else "padded",
            pad_id=given.require_tokenizer().require_masking().pad,
        )
