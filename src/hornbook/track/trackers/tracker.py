"""The interface of trackers, and the table of those that a recipe can name.

::

    [tracking] trackers = ["tensorboard", "mine"]  ->  open_function("mine")(TrackedRun(...)) -> Tracker
                                                       tracker.numbers(20, {"train/loss": 3.1, ...})
                                                       tracker.text(20, "sample", "Once upon a time")
                                                       tracker.histograms(20, {"weight/head.norm.bias": Histogram(...)})
                                                       tracker.close("finished")

Hornbook calls a tracker's methods one after the other, from a thread of that tracker
(`hornbook.track.trackers.delivery`). They may raise any exception and take any time; training continues.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from hornbook.config.suggest import did_you_mean
from hornbook.errors import UserError
from hornbook.extras import require

Ended: TypeAlias = Literal["finished", "stopped", "failed"]
"""How a session of a run ended; "stopped" by a signal, to be resumed."""

_LIBRARIES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}
"""Built-in trackers, also the names of their extras and modules, and the libraries that they need."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """The run, as passed to a tracker when it is opened."""

    name: str
    """The recipe's name."""
    project: str
    """``tracking.project`` of the recipe."""
    folder: Path
    """The run's folder, for files that a tracker writes."""
    config: Mapping[str, object]
    """Every value of the recipe by dotted key, such as ``optimizer.learning_rate``; tuples are lists."""
    step: int
    """Finished steps: 0 for a new run. Entries of later steps, from before a resume, are delivered again."""
    run_id: str | None
    """``Tracker.run_id`` of the previous session; None for a run that is new to this tracker."""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """A histogram: ``counts[i]`` values are between ``edges[i]`` and ``edges[i + 1]``."""

    edges: Sequence[float]
    counts: Sequence[int]

    @property
    def centers(self) -> list[float]:
        """The center of each bin."""
        return [(low + high) / 2 for low, high in zip(self.edges, self.edges[1:], strict=False)]


class Tracker(Protocol):
    """A receiver of a run's entries; see the module."""

    @property
    def run_id(self) -> str:
        """The run's id in the tracker, saved in the run's folder for the next session."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Log finite metrics after ``step`` finished steps, such as ``validation/loss``."""

    def text(self, step: int, name: str, text: str) -> None:
        """Log a text that the model generated."""

    def histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        """Log histograms of weights (``weight/NAME``) before a step's update, and of gradients (``gradient/NAME``)."""

    def close(self, ended: Ended) -> None:
        """Write pending entries and end the session."""


Open: TypeAlias = Callable[[TrackedRun], Tracker]

_REGISTERED: dict[str, Open] = {}


def register_tracker(name: str) -> Callable[[Open], Open]:
    """Return a decorator that registers a function from a `TrackedRun` to a `Tracker` for ``tracking.trackers``.

    Registering a name again replaces the earlier function.

    Raises:
        UserError: hornbook has a tracker with that name.
    """
    if name in _LIBRARIES:
        raise UserError(f"hornbook already has a tracker {name!r}; choose another name")

    def add(function: Open) -> Open:
        _REGISTERED[name] = function
        return function

    return add


def open_function(name: str) -> Open:
    """Return the function that opens a tracker.

    Raises:
        UserError: there is no such tracker, or its library is not installed.
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name not in _LIBRARIES:
        known = sorted({*_LIBRARIES, *_REGISTERED})
        raise UserError(
            f"tracking.trackers: there is no tracker {name!r}{did_you_mean(name, known)}; expected {', '.join(known)}"
        )
    require(_LIBRARIES[name], extra=name, purpose=f"tracker {name}")
    opened: Open = importlib.import_module(f"hornbook.track.trackers.{name}").open_tracker
    return opened
