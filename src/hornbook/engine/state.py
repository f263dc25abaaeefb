"""Everything that a run carries from step to step. What is not in ``TrainState`` does not exist.

There is no random state and no loader state in it: order, masks and dropout are functions of the seed and the number of
samples, which is one integer here.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import get_type_hints

import torch
from torch import Tensor

from hornbook.errors import CheckpointError
from hornbook.model import LanguageModel
from hornbook.optim.slots import Slot, num_parts_of, role_of
from hornbook.optim.updates import Update
from hornbook.parallel.world import World

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
            raise CheckpointError(f"{path} is missing or has no `step`; take another checkpoint")
        hints = get_type_hints(cls)
        values = {name: value for name, value in document.items() if name in hints}
        for name, value in values.items():
            is_whole = type(value) is int
            if not (isinstance(value, hints[name]) or (is_whole and isinstance(0.0, hints[name]))) or (
                isinstance(value, bool) or (is_whole and not 0 <= value < _MOST)
            ):
                raise CheckpointError(f"{path}: {name} is {value!r:.40}; take another checkpoint")
        return cls(**values)


@dataclass(kw_only=True)
class TrainState:
    """A model, its optimizer's state and its progress."""

    model: LanguageModel
    moments: dict[str, dict[str, Tensor]]
    """By parameter name, then by state name; tensors of the parameter's shape."""
    progress: Progress = field(default_factory=Progress)

    @classmethod
    def fresh(cls, model: LanguageModel, update: Update) -> "TrainState":
        """Return the state before the first step: moments are zero."""
        moments = {
            name: {key: torch.zeros_like(parameter) for key in update.state_names}
            for name, parameter in model.own_parameters()
        }
        return cls(model=model, moments=moments)

    def share_gradients(self, world: World) -> None:
        """Give each parameter the sum of its gradients over all ranks, in place.

        An objective or a model may skip a part where a micro-batch has nothing for it. Its gradient is zero then, and
        counts as such: so a parameter has a gradient if it has one on any rank, as it would in one process.
        """
        parameters = [parameter for _, parameter in self.model.own_parameters()]
        ranks_with_gradient = world.sum_integers([parameter.grad is not None for parameter in parameters])
        shared = [parameter for parameter, ranks in zip(parameters, ranks_with_gradient, strict=True) if ranks]
        for parameter in shared:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        world.sum_gradients([parameter.grad for parameter in shared if parameter.grad is not None])

    def slots(self) -> list[Slot]:
        """Return parameter, gradient and moments of everything that has a gradient."""
        return [
            Slot(
                parameter=parameter.detach(),
                gradient=parameter.grad,
                state=self.moments[name],
                role=role_of(name, parameter),
                num_parts=num_parts_of(name),
            )
            for name, parameter in self.model.own_parameters()
            if parameter.grad is not None
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors of a checkpoint."""
        return sum(tensor.nbytes for tensors in self.to_tensors().values() for tensor in tensors.values())

    def to_tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of a checkpoint by file: logical shapes, no padding, names of this project."""
        logical = self.model.logical
        weights = {name: logical(name, parameter.detach()) for name, parameter in self.model.own_parameters()}
        moments = {
            f"{name}.{key}": logical(name, tensor)
            for name, states in self.moments.items()
            for key, tensor in states.items()
        }
        return {"model": weights, "optimizer": moments}

    def load_tensors(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Copy a checkpoint's tensors in; the caller has checked that names and shapes agree."""
        own = self.to_tensors()
        with torch.no_grad():
            for file, values in own.items():
                for name, tensor in values.items():
                    tensor.copy_(tensors[file][name])

    def to_json(self) -> dict[str, object]:
        """Return the progress as JSON."""
        return asdict(self.progress)
