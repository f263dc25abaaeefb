"""Functions of the user that training calls after each step and each validation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hornbook.errors import HornbookError, UserError
from hornbook.model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Event:
    """What a callback gets.

    Attributes:
        kind: ``"step"`` after an update, ``"validation"`` after a measurement of the validation loss.
        step: number of finished steps.
        loss: of this step's global batch, or on the validation text, in nats; None: no item was scored.
        values: of a step ``learning_rate``, ``gradient_norm`` before clipping, ``skipped`` and the loss terms; of a
            validation the row of ``metrics.jsonl``.
        model: this process's model; phased execution and sharded data parallelism hold parts of its weights.
    """

    kind: Literal["step", "validation"]
    step: int
    loss: float | None
    values: Mapping[str, Any]
    model: LanguageModel


Callback = Callable[[Event], object]


def call(callbacks: Sequence[Callback], event: Event, what_is_saved: Callable[[], str]) -> None:
    """Call each callback with ``event``.

    Raises:
        UserError: a callback raised an exception that is no HornbookError; the message has its name.
    """
    for callback in callbacks:
        try:
            callback(event)
        except HornbookError:
            raise
        except Exception as error:
            name = getattr(callback, "__name__", type(callback).__name__)
            what = f"failed after step {event.step}: {type(error).__name__}: {error}"
            raise UserError(f"the callback {name} {what}; {what_is_saved()}") from error
