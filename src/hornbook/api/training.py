"""Runs in Python: train one from a recipe, and read the numbers of those that are there as rows for pandas.

    run = train("demo", {"data.train": "corpora/mine", "training.steps": 300}, output="runs/mine")
    run.load().generate("Once upon a time")
    pandas.DataFrame(metrics("runs/mine"))      a row a measurement, as metrics.jsonl has it
    pandas.DataFrame(runs("runs"))              a row a run, as ``hornbook runs list`` shows it

An override is a dotted name, as everywhere in the recipes, the messages and the documentation; so it stands in a
dictionary, since a name with a dot is no keyword of Python's.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hornbook.api.model import Model, load
from hornbook.config import Recipe
from hornbook.config.overrides import override_leaves, override_recipe
from hornbook.config.sections import Compute
from hornbook.errors import UserError
from hornbook.run.initial_weights import InitFrom
from hornbook.run.launch import train as train_resolved
from hornbook.run.start_recipe import start_recipe
from hornbook.track.runs import find_runs, read_run, summarize


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that `train` has finished.

    Attributes:
        path: its folder.
        recipe: what was asked for.
        summary: what ``hornbook train --json`` gives: step, tokens, seconds, best value, …
    """

    path: Path
    recipe: Recipe
    summary: Mapping[str, Any]

    def load(self, *, device: str = "auto", compute: Compute = "auto") -> Model:
        """Return the model of the newest checkpoint; arguments and errors as `hornbook.load`."""
        return load(self.path, device=device, compute=compute)

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of the run's log; arguments and errors as `hornbook.metrics`."""
        return metrics(self.path, kind)


def train(
    recipe: str | Path | Recipe,
    overrides: Mapping[str, Any] | None = None,
    *,
    output: str | Path | None = None,
    init_from: str | Path | None = None,
    keep_optimizer: bool = False,
    allow_learning_rate_change: bool = False,
    device: str = "auto",
    threads: int | None = None,
) -> Run:
    """Train what a recipe describes, as ``hornbook train`` does, and return the finished run.

    The same call on the same folder goes on where a run was stopped, and returns at once where it is finished. Ctrl-C
    saves after the current step.

    Args:
        recipe: the name of a bundled recipe, the path of a file, the folder of a run to go on with, or a ``Recipe``
            (that of a `Model`, say).
        overrides: values of the recipe by dotted name: ``{"training.steps": 300, "data.train": folder}``. Paths are
            relative to the working directory.
        output: the run's folder; if None, that of ``recipe`` if it is a run, else ``runs/<name of the recipe>``.
        init_from: a run, a checkpoint or a Hugging Face folder whose weights a new run starts with. Its architecture
            replaces that of the recipe, except that of a ``Recipe``, which has to agree.
        keep_optimizer: take the state of its optimizer along.
        allow_learning_rate_change: go on although another length makes the learning rate jump.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``.
        threads: of this process on a CPU, from now on; None: ``OMP_NUM_THREADS``, or one a physical core.

    Raises:
        RecipeError: every mistake of the recipe and the overrides at once.
        UserError: another argument is wrong, or ``output`` holds another run.
        DataError, CheckpointError: an input is damaged or does not fit.
        StoppedBySignal: Ctrl-C or a signal; the state is saved.
        DivergedError: the loss stayed non-finite.
        StorageError: the disk is full or failing.
    """
    if keep_optimizer and init_from is None:
        raise UserError("keep_optimizer applies only with init_from; add init_from or leave it out")
    leaves = override_leaves(overrides or {})
    folder = None if output is None else Path(output)
    source = None if init_from is None else InitFrom(source=str(init_from), keep_optimizer=keep_optimizer)
    resolved = (
        override_recipe(recipe, leaves)
        if isinstance(recipe, Recipe)
        else start_recipe(str(recipe), leaves, output=folder, init_from=source)
    )
    summary = train_resolved(
        resolved,
        output=folder,
        device=device,
        threads=threads,
        init_from=source,
        allow_rate_change=allow_learning_rate_change,
    )
    return Run(path=Path(summary["run"]), recipe=resolved.recipe, summary=summary)


def metrics(run: str | Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a run's log in their order, one dictionary each, for ``pandas.DataFrame``.

    Args:
        run: the run's folder, finished or under way.
        kind: only rows of this kind, such as ``"train"``, ``"validation"`` or ``"task"``; None for all.

    Raises:
        UserError: there is no run.
        DataError: one of its files is malformed.
    """
    files = read_run(Path(run))
    return files.rows if kind is None else files.of_kind(kind)


def runs(folder: str | Path = "runs") -> list[dict[str, Any]]:
    """Return a summary of each run at or below a folder, one dictionary each, for ``pandas.DataFrame``.

    Raises:
        UserError: there is no such folder.
        DataError: a file of one of the runs is malformed.
    """
    return [asdict(summarize(found)) for found in find_runs(Path(folder))]
