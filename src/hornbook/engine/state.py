"""The complete state of a training run, from step to step.

It has no random state and no loader state: order, masks and dropout are functions of the seed and the number of
samples, which is one integer in ``Progress``.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from hornbook.checkpoint.load import read_box
from hornbook.checkpoint.tensors import Box
from hornbook.engine.home import Home
from hornbook.errors import CheckpointError
from hornbook.model import LanguageModel

_MOST = 1 << 62
"""Greater than any count; adding the samples of one more step does not overflow int64."""


@dataclass(kw_only=True)
class Progress:
    """The progress of a run, saved in a checkpoint's ``state.json``."""

    step: int = 0
    """Finished steps, including skipped ones."""
    samples: int = 0
    """Consumed samples: the loader's position."""
    tokens: int = 0
    """Consumed tokens that were scored."""
    num_updates: int = 0
    """Updates of the weights: steps that were not skipped."""
    inherited_updates: int = 0
    """Updates of the moments before the run began; bias correction continues from there."""
    skipped_steps: int = 0
    """Steps whose loss or gradients were not finite."""
    skipped_in_a_row: int = 0
    """Consecutive skipped steps, without overflows that lower the loss scale."""
    loss_scale: float | None = None
    """Loss scale of the next step; None if it is fixed, or before the first step."""
    updates_at_scale: int = 0
    """Updates since a dynamic loss scale was last changed."""
    finite_step: int = 0
    """Last step after which the validation loss was finite."""
    validated_step: int = 0
    """Last step after which the validation loss was measured."""
    evaluated_step: int = 0
    """Last step after which tasks were run."""
    sampled_step: int = 0
    """Last step after which the model generated a sample."""
    best_by: str = "validation"
    """Metric of the best step: ``checkpoint.best_by`` of the recipe at that time."""
    best_value: float | None = None
    """Best value among the saved steps."""
    best_step: int | None = None
    """Step of the best value."""
    stopping_by: str = "validation"
    """Metric of early stopping: ``checkpoint.best_by`` of the recipe at the last measurement."""
    stopping_value: float | None = None
    """Value of the last improvement, whether its step was saved or not."""
    stale_measurements: int = 0
    """Measurements since the last improvement."""
    seconds: float = 0.0
    """Training time in seconds, over all resumes."""
    unlogged_sums: dict[str, float] = field(default_factory=dict)
    """Sum of each term of the loss over the steps since the last row of the log, without skipped steps."""
    unlogged_counts: dict[str, int] = field(default_factory=dict)
    """Scored items of each term in these steps."""

    @classmethod
    def from_json(cls, document: object, path: str) -> "Progress":
        """Return the progress in a ``state.json``; missing keys get their defaults, unknown ones are ignored.

        Args:
            document: parsed JSON.
            path: the file, for error messages.

        Raises:
            CheckpointError: the document is not an object or has no step, or a value has the wrong type or range.
        """
        if not isinstance(document, dict) or "step" not in document:
            raise CheckpointError(f"{path} is missing or has no `step`; use another checkpoint")
        hints = get_type_hints(cls)
        values = {name: value for name, value in document.items() if name in hints}
        for name, value in values.items():
            if not _fits(value, hints[name]):
                raise CheckpointError(f"{path}: {name} is {value!r:.40}; use another checkpoint")
        progress = cls(**values)
        if progress.num_updates > progress.step:
            raise CheckpointError(
                f"{path} has {progress.num_updates} updates after {progress.step} steps; use another checkpoint"
            )
        return progress


def _fits(value: object, hint: Any) -> bool:
    """Return whether a value of a ``state.json`` has its type; integers must be counts, and may stand for floats."""
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(_fits(entry, get_args(hint)[1]) for entry in value.values())
    if type(value) is int:
        return 0 <= value < _MOST and (isinstance(value, hint) or isinstance(0.0, hint))
    return isinstance(value, hint) and not isinstance(value, bool)


@dataclass(kw_only=True)
class TrainState:
    """A model, the home of its weights and optimizer state, and the run's progress."""

    model: LanguageModel
    home: Home
    progress: Progress = field(default_factory=Progress)

    def load_tensors(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Copy tensors of a checkpoint, all or some, into the state; the caller has checked names and shapes.

        Each rank reads only the parts that it holds.
        """
        with torch.no_grad():
            for group, shards in self.home.tensors().items():
                stored = tensors.get(group, {})
                for name, shard in shards.items():
                    if name in stored:
                        shard.values.copy_(read_box(stored, name, Box(shard.begin, tuple(shard.values.shape))))

    def to_json(self) -> dict[str, object]:
        """Return the progress as JSON."""
        return asdict(self.progress)
