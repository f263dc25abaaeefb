"""Everything that a run carries from step to step. What is not in ``TrainState`` does not exist.

There is no random state and no loader state in it: order, masks and dropout are functions of the seed and the number of
samples, which is one integer here.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from hornbook.checkpoint.boxes import Box
from hornbook.checkpoint.load import read_box
from hornbook.engine.home import Home
from hornbook.errors import CheckpointError
from hornbook.model import LanguageModel

_MOST = 1 << 62
"""Above all counts, and so that the samples of one more step can be numbered."""


@dataclass(kw_only=True)
class Progress:
    """The integers of a run; they go into a checkpoint's ``state.json``."""

    step: int = 0
    """Finished steps, skipped ones included."""
    samples: int = 0
    """Samples that went by: the loader's position."""
    tokens: int = 0
    """Scored tokens that went by."""
    num_updates: int = 0
    """Updates of the weights: steps that were not skipped."""
    inherited_updates: int = 0
    """Updates that the moments had seen before the run began; bias correction counts on from there."""
    skipped_steps: int = 0
    """Steps whose loss or gradients were not finite."""
    skipped_in_a_row: int = 0
    """Without those that a smaller loss scale mends."""
    loss_scale: float | None = None
    """Of the next step; None where it does not move, or before the first step."""
    updates_at_scale: int = 0
    """Updates since a dynamic loss scale was last changed."""
    finite_step: int = 0
    """Last step after which the validation loss was finite."""
    validated_step: int = 0
    """Last step after which the validation loss was measured."""
    evaluated_step: int = 0
    """Last step after which tasks were run."""
    sampled_step: int = 0
    """Last step after which the model wrote a text."""
    best_by: str = "validation"
    """What the best was chosen by: ``checkpoint.best_by`` of the recipe at that time."""
    best_value: float | None = None
    """The best value of a step that was saved, and the step."""
    best_step: int | None = None
    stopping_by: str = "validation"
    """What early stopping goes by: ``checkpoint.best_by`` of the recipe when it was last measured."""
    stopping_value: float | None = None
    """The last value that counted as an improvement, of a step that need not have been saved."""
    stale_measurements: int = 0
    """Measurements since then."""
    seconds: float = 0.0
    """Time spent in training, over all resumes."""
    unlogged_sums: dict[str, float] = field(default_factory=dict)
    """By term of the loss, its sum over the steps since the last row of the log; without skipped steps."""
    unlogged_counts: dict[str, int] = field(default_factory=dict)
    """By term, the items scored in these steps."""

    @classmethod
    def from_json(cls, document: object, path: str) -> "Progress":
        """Return the progress that a ``state.json`` holds; missing keys take their defaults, unknown ones are ignored.

        Args:
            document: parsed JSON.
            path: the file, for the error.

        Raises:
            CheckpointError: it is no object, has no step, or a value is not of its type or out of range.
        """
        if not isinstance(document, dict) or "step" not in document:
            raise CheckpointError(f"{path} is missing or has no `step`; use another checkpoint")
        hints = get_type_hints(cls)
        values = {name: value for name, value in document.items() if name in hints}
        for name, value in values.items():
            if not _fits(value, hints[name]):
                raise CheckpointError(f"{path}: {name} is {value!r:.40}; use another checkpoint")
        return cls(**values)


def _fits(value: object, hint: Any) -> bool:
    """Tell whether a value of a ``state.json`` has its type; whole numbers count something, and pass as floats."""
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
        """Copy a checkpoint's tensors in, or some of them; the caller has checked that names and shapes agree.

        A rank reads the boxes that it holds.
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
