"""Train a recipe, and read the logged values of runs as rows for pandas.

    run = train("demo", {"data.train": "corpora/mine", "training.steps": 300}, output="runs/mine")
    run.load().generate("Once upon a time")
    pandas.DataFrame(metrics("runs/mine"))      a row per line of metrics.jsonl
    pandas.DataFrame(runs("runs"))              a row per run, as in ``hornbook runs list``

Overrides are a dictionary rather than keyword arguments, since their names have a dot, as in recipes and messages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hornbook.api.model import Model, load
from hornbook.config import Resolved
from hornbook.config.overrides import override_leaves, override_recipe
from hornbook.config.recipe import Recipe
from hornbook.config.recipe_files import Tree
from hornbook.config.sections import Compute
from hornbook.errors import UserError
from hornbook.measure.dial import NAME, auto_recipe
from hornbook.parallel.device import prepare, return_freed_memory
from hornbook.plan.dial import Dial
from hornbook.run.callbacks import Callback
from hornbook.run.initial_weights import InitFrom
from hornbook.run.launch import train as train_resolved
from hornbook.run.start_recipe import start_recipe
from hornbook.track.metrics import KINDS
from hornbook.track.runs import find_runs, read_run, summarize


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run, returned by `train`.

    Attributes:
        path: its folder.
        recipe: its resolved recipe.
        summary: the result of ``hornbook train --json``: step, tokens, seconds, best value, …
    """

    path: Path
    recipe: Recipe
    summary: Mapping[str, Any]

    def load(self, *, device: str = "auto", compute: Compute = "auto") -> Model:
        """Return the model of the newest checkpoint; arguments and errors as for `hornbook.load`."""
        return load(self.path, device=device, compute=compute)

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of the run's log; arguments and errors as for `hornbook.metrics`."""
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
    callbacks: Sequence[Callback] = (),
    **dial: str | float,
) -> Run:
    """Train a recipe, as ``hornbook train`` does, and return the finished run.

    The same call resumes an interrupted run, and returns a finished one at once. Ctrl-C saves after the current step.

    Args:
        recipe: the name of a bundled recipe, the path of a recipe file, the folder of a run to resume, or a ``Recipe``,
            such as that of a `Model`.
        overrides: values of the recipe by dotted name: ``{"training.steps": 300, "data.train": folder}``. Paths are
            relative to the working directory.
        output: folder of the run; None: that of ``recipe`` if it is a run, otherwise ``runs/<name of the recipe>``.
        init_from: a run, a checkpoint or a Hugging Face folder with the initial weights of a new run. Its architecture
            replaces that of the recipe, but must match that of a ``Recipe``.
        keep_optimizer: with ``init_from``, start with its optimizer state as well.
        allow_learning_rate_change: resume with another length even if the learning rate jumps.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``.
        threads: number of CPU threads of this process from now on; None: ``OMP_NUM_THREADS`` or, by default, one per
            physical core.
        dial: for the recipe ``"auto"``, one of ``time="30m"``, ``params``, ``tokens``, ``flops`` and ``memory``.
        callbacks: functions of a `hornbook.run.callbacks.Event`, called after each step and each validation.

    Raises:
        RecipeError: the recipe or the overrides are invalid; lists all mistakes.
        UserError: another argument is invalid, ``output`` has another run, or a callback failed.
        DataError, CheckpointError: an input is damaged or does not match the recipe.
        StoppedBySignal: Ctrl-C or a signal; the state is saved.
        DivergedError: the loss stayed non-finite.
        StorageError: the disk is full or failing.
    """
    if keep_optimizer and init_from is None:
        raise UserError("keep_optimizer applies only with init_from; add init_from or remove it")
    if output == "":
        raise UserError('output must not be empty; "." is the working directory')
    leaves = override_leaves({} if overrides is None else overrides)
    folder = None if output is None else Path(output)
    source = None if init_from is None else InitFrom(source=str(init_from), keep_optimizer=keep_optimizer)
    resolved = _resolve(recipe, leaves, folder, source, device, threads, dial)
    summary = train_resolved(
        resolved,
        output=folder,
        device=device,
        threads=threads,
        init_from=source,
        allow_rate_change=allow_learning_rate_change,
        callbacks=callbacks,
    )
    return_freed_memory()
    return Run(path=Path(summary["run"]), recipe=resolved.recipe, summary=summary)


def _resolve(
    recipe: str | Path | Recipe,
    leaves: Tree,
    folder: Path | None,
    source: InitFrom | None,
    device: str,
    threads: int | None,
    dial: Mapping[str, str | float],
) -> Resolved:
    if recipe == NAME:
        if source is not None:
            raise UserError("auto chooses the architecture, but init_from sets it: remove it, or train its recipe")
        return auto_recipe(Dial.of(dial), leaves, folder, prepare(device, threads), writes=True)
    if dial:
        raise UserError(f"{next(iter(dial))} applies only to the recipe auto, and is no other argument of train")
    if isinstance(recipe, Recipe):
        return override_recipe(recipe, leaves)
    return start_recipe(str(recipe), leaves, output=folder, init_from=source)


def metrics(run: str | Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a run's log in order, as dictionaries, for ``pandas.DataFrame``.

    Args:
        run: folder of a finished or unfinished run.
        kind: return only rows of this kind, such as ``"train"``, ``"validation"`` or ``"task"``; None for all.

    Raises:
        UserError: the folder is not a run, or there is no such kind.
        DataError: one of its files is malformed.
    """
    if kind not in (None, *KINDS):
        raise UserError(f"kind is {kind!r}; expected one of {', '.join(KINDS)}, or None for all")
    files = read_run(Path(run))
    return files.rows if kind is None else files.of_kind(kind)


def runs(folder: str | Path = "runs") -> list[dict[str, Any]]:
    """Return the summaries of all runs in a folder and its subfolders, as dictionaries, for ``pandas.DataFrame``.

    Raises:
        UserError: the folder does not exist.
        DataError: a file of one of the runs is malformed.
    """
    return [asdict(summarize(found)) for found in find_runs(Path(folder))]
