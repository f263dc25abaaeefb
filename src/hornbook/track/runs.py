"""Find, summarize and compare the folders of runs.

    runs/demo/metrics.jsonl, recipe.toml, environment.json, evaluation.json
        ──summarize──► RunSummary(step=2000, best_validation_loss=2.91, ...)
        ──compare────► the summaries, and every recipe key whose values differ

Everything is read from the files each time: there is no index that could be out of date. The price: a list reads every
row of every run.
"""

import math
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from hornbook.config import Recipe
from hornbook.config.build import recipe_from_dict
from hornbook.config.recipe_files import IDENTITY
from hornbook.config.suggest import did_you_mean_path
from hornbook.errors import DataError, HornbookError, RecipeError, UserError
from hornbook.storage.json_files import read_bytes, read_json
from hornbook.track import environment, metrics, run_state, units
from hornbook.track.evaluations import Evaluation, own_bits_per_byte, read_evaluations, value_of
from hornbook.track.notes import Notes, read_notes
from hornbook.track.run_state import (
    State,
    document_of,
    is_run,
    newest_checkpoint,
    seconds_left,
    state_of,
    training_seconds,
)
from hornbook.track.units import number
from hornbook.wording import one_line, redacted

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The content of a run folder, read once."""

    folder: Path
    rows: list[Row]
    recipe_text: str
    """The recipe without passwords and keys in addresses, and so is ``recipe``."""
    recipe: dict[str, Any]
    sessions: list[dict[str, Any]]
    tasks: list[Evaluation]
    validation_fingerprint: str | None
    """Fingerprint of the run's validation data, from ``run.json``."""
    notes: Notes
    damaged: tuple[str, ...] = ()
    """What is wrong with ``environment.json`` and ``evaluation.json``, which then count as missing."""

    @property
    def name(self) -> str:
        """The recipe's name, or the folder's."""
        name = self.recipe.get("name")
        return name if isinstance(name, str) and name else self.title

    @property
    def title(self) -> str:
        """The folder's name, by which its owner tells it from other runs of the same recipe; escaped for display."""
        return one_line(self.folder.resolve().name)

    @property
    def objective(self) -> str | None:
        """The run's objective, such as ``causal_lm``: losses of different objectives are not comparable."""
        objective = self.recipe.get("objective")
        name = objective.get("name") if isinstance(objective, dict) else None
        return name if isinstance(name, str) else None

    @property
    def held_out(self) -> str:
        """The text of the validation loss: ``corpora/mine, validation split``."""
        data = self.recipe.get("data")
        data = data if isinstance(data, dict) else {}
        train = data.get("train")
        named = data.get("validation") or (", ".join(map(str, train)) if isinstance(train, list) else train)
        return f"{named}, validation split" if named else "its validation split"

    def of_kind(self, kind: str) -> list[Row]:
        """Return the rows of one kind: "train", "validation", "final", "task" or "topology"."""
        return [row for row in self.rows if row.get("kind") == kind]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The summary of a run. Losses in nats per scored token, ``seconds`` of training; ``None`` if not measured."""

    name: str
    folder: str
    state: State
    objective: str | None
    num_parameters: int | None
    """Parameters of the model; None for a recipe of another version or a model that does not describe itself."""
    step: int
    """The last trained step, from the log or a checkpoint."""
    total_steps: int | None
    tokens: int | None
    loss: float | None
    loss_step: int | None
    """The step at which ``loss`` was logged."""
    validation_loss: float | None
    validation_step: int | None
    validation_scored: str
    """Tokens of the last validation, and the share of the text and standard error if it was a part of the text."""
    best_validation_loss: float | None
    best_step: int | None
    bits_per_byte: float | None
    """Bits per byte of the run's validation split."""
    bits_per_byte_step: int | None
    bits_per_byte_by: Literal["evaluation", "validation"] | None
    """Whether it is from ``hornbook evaluate``, with overlapping windows, or from the validation loss, without."""
    tokens_per_second: float | None
    mfu: float | None
    """Median share of the peak rate, over the steps that were measured by the same peak as the last one."""
    seconds: float | None
    seconds_left: float | None
    """Time to the last step at the speed last logged; None if the run is not running."""
    skipped_steps: int
    num_sessions: int
    started: str | None
    tags: tuple[str, ...]
    note: str
    damaged: tuple[str, ...]
    """As in `RunFiles`."""

    @property
    def progress(self) -> str:
        """The finished steps and their total, ``720/2,000``; a dash for an imported model, which has no steps."""
        return units.MISSING if self.state == "imported" else units.progress(self.step, self.total_steps)

    @property
    def measured(self) -> dict[str, tuple[float | None, int | None, bool]]:
        """Each loss with the step at which it was measured, and whether a newer one on held-out text exists.

        The keys are "loss", "validation_loss", "best_validation_loss" and "bits_per_byte".
        """
        newest = max(self.validation_step or 0, self.bits_per_byte_step or 0)
        return {
            "loss": (self.loss, self.loss_step, (self.loss_step or 0) < newest),
            "validation_loss": (self.validation_loss, self.validation_step, (self.validation_step or 0) < newest),
            "best_validation_loss": (self.best_validation_loss, self.best_step, False),
            "bits_per_byte": (self.bits_per_byte, self.bits_per_byte_step, (self.bits_per_byte_step or 0) < newest),
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several runs; ``differences`` maps dotted recipe keys to the value in each run, ``None`` if not set."""

    runs: tuple[RunSummary, ...]
    differences: dict[str, tuple[object, ...]]
    files: tuple[RunFiles, ...]

    @property
    def cautions(self) -> list[str]:
        """Return what is damaged, and reasons why the losses of the runs are not comparable."""
        objectives = dict.fromkeys(run.objective or "an unknown one" for run in self.files)
        texts = {run.validation_fingerprint for run in self.files} - {None}
        found = [problem for run in self.files for problem in run.damaged]
        if len(objectives) > 1:
            found.append(f"losses of different objectives are not comparable: {', '.join(objectives)}")
        if len(texts) > 1:
            found.append("the runs have different validation texts, so their validation losses are not comparable")
        windows = [
            (run.of_kind("validation")[-1:], flatten(run.recipe).get("data.sequence_length")) for run in self.files
        ]
        scored = {(number(row, "tokens"), length) for rows, length in windows for row in rows}
        if len(texts) == 1 and len({length for _, length in scored}) > 1:
            found.append("the runs have sequences of different lengths, so their validation losses are not comparable")
        elif len(texts) == 1 and len(scored) > 1:
            counts = " and ".join(units.count(tokens) for tokens, _ in sorted(scored, key=str))
            found.append(f"validation losses are over different numbers of tokens, {counts}: not exactly comparable")
        return found


def require_folder(root: Path) -> None:
    """Raise UserError if ``root`` is not a folder, which may have runs."""
    if root.is_file():
        raise UserError(f"{root} is a file; expected a folder with runs")
    if not root.is_dir():
        hint = did_you_mean_path(root) or "; `hornbook train` makes the folder runs; or name another"
        raise UserError(f"no folder {root} here{hint}")


def find_runs(root: Path) -> list[Path]:
    """Return all run folders at or below ``root``, sorted; runs, hidden folders and links are not searched.

    Raises:
        UserError: ``root`` is not a folder.
    """
    require_folder(root)
    found = []
    for folder, names, _ in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        if is_run(Path(folder)):
            found.append(Path(folder))
            names.clear()
    return sorted(found)


def read_run(folder: Path, rows: list[Row] | None = None) -> RunFiles:
    """Read a run folder; missing files count as empty, and so do damaged ones that only add to a run.

    Args:
        folder: the run's folder.
        rows: rows of its log, if already read.

    Raises:
        UserError: the folder has no run.
        DataError: its log, recipe, identity or notes are malformed; names the file.
        StorageError: one of these cannot be read.
    """
    if not is_run(folder):
        hint = did_you_mean_path(folder)
        raise UserError(f"no run in {folder}{hint}; expected a folder with metrics.jsonl, as `hornbook train` leaves")
    recipe = folder / "recipe.toml"
    recipe_text = read_bytes(recipe, "the recipe", follow=False).decode("utf-8", "replace") if recipe.is_file() else ""
    recipe_text = redacted(recipe_text)
    added, damaged = dict[str, list[dict[str, Any]]](), list[str]()
    for name, read in (("environment.json", environment.sessions), ("evaluation.json", read_evaluations)):
        try:
            added[name] = read(folder / name)
        except HornbookError as error:
            damaged.append(str(error))
    return RunFiles(
        folder=folder,
        rows=metrics.read(folder / "metrics.jsonl") if rows is None else rows,
        recipe_text=recipe_text,
        recipe=_parse_recipe(recipe_text, recipe) or run_state.imported_recipe(folder),
        sessions=added.get("environment.json", []),
        tasks=added.get("evaluation.json", []),
        validation_fingerprint=_validation_fingerprint(folder / IDENTITY),
        notes=read_notes(folder),
        damaged=tuple(damaged),
    )


def summarize(folder: Path) -> RunSummary:
    """Return the summary of a run folder; see ``read_run`` for errors."""
    return summary_of(read_run(folder))


def summary_of(run: RunFiles) -> RunSummary:
    """Return the summary of a run."""
    train, validation = run.of_kind("train"), run.of_kind("validation")
    losses = [(loss, int(row["step"])) for row in validation if (loss := number(row, "loss")) is not None]
    best, best_step = min(losses, default=(None, None))
    logged = max((int(row["step"]) for row in run.rows), default=0)
    saved_step, saved = newest_checkpoint(run.folder) or (0, run.folder)
    counters = [*train, document_of(saved, "state")] if saved_step > logged else train
    tokens, skipped = last(counters, "tokens"), last(counters, "skipped_steps")
    started = run.sessions[0].get("started") if run.sessions else None
    total_steps = _total_steps(run)
    bits, bits_step, bits_by = _bits_per_byte(run)
    state = state_of(run.folder, run.sessions, total_steps)
    newest = train[-1] if train and state == "running" else {}
    return RunSummary(
        name=run.name,
        folder=str(run.folder),
        state=state,
        objective=run.objective,
        num_parameters=_num_parameters(run),
        step=max(logged, saved_step),
        total_steps=total_steps,
        tokens=None if tokens is None else int(tokens),
        loss=last(train, "loss"),
        loss_step=next((int(row["step"]) for row in reversed(train) if number(row, "loss") is not None), None),
        validation_loss=losses[-1][0] if losses else None,
        validation_step=losses[-1][1] if losses else None,
        validation_scored=units.scored(validation[-1]) if validation else "",
        best_validation_loss=best,
        best_step=best_step,
        bits_per_byte=bits,
        bits_per_byte_step=bits_step,
        bits_per_byte_by=bits_by,
        tokens_per_second=_middle(number(row, "tokens_per_second") for row in train),
        mfu=_median_mfu(train),
        seconds=training_seconds(counters),
        seconds_left=seconds_left(newest, total_steps) if total_steps else None,
        skipped_steps=int(skipped or 0),
        num_sessions=environment.num_sessions(run.sessions),
        started=started if isinstance(started, str) else None,
        tags=run.notes.tags,
        note=run.notes.note,
        damaged=run.damaged,
    )


def parsed(run: RunFiles) -> Recipe:
    """Return the recipe, for an imported model with a length that nothing shows, as it has none. Raises RecipeError."""
    return recipe_from_dict({"training": {"steps": 1}} | run.recipe)


def compare(folders: Sequence[Path]) -> Comparison:
    """Return the comparison of run folders; see ``read_run`` for errors."""
    return compare_read([read_run(folder) for folder in folders])


def compare_read(runs: Sequence[RunFiles]) -> Comparison:
    """Return the comparison of runs. A recipe without a section, such as an imported model's, does not differ in it."""
    recipes = [flatten(run.recipe) for run in runs]
    differing = {}
    for key in sorted({key for recipe in recipes for key in recipe}):
        values = tuple(recipe.get(key) for recipe in recipes)
        section, dot, _ = key.partition(".")
        having = [value for value, run in zip(values, runs, strict=True) if not dot or section in run.recipe]
        if any(value != having[0] for value in having[1:]):
            differing[key] = values
    return Comparison(runs=tuple(map(summary_of, runs)), differences=differing, files=tuple(runs))


def plain_value(value: object) -> object:
    """Return a recipe's value as JSON: numbers, texts, booleans and lists are unchanged, a date becomes a text."""
    if isinstance(value, list):
        return [plain_value(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a tree with dotted keys: ``{"model": {"num_layers": 4}}`` -> ``{"model.num_layers": 4}``."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def last(rows: Iterable[Row], key: str) -> float | None:
    """Return the last finite value of a column."""
    return next((value for row in reversed(list(rows)) if (value := number(row, key)) is not None), None)


def _parse_recipe(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {error}; expected the TOML that `hornbook train` wrote; restore it") from error


def _validation_fingerprint(path: Path) -> str | None:
    """Return the fingerprint of the run's validation data from ``run.json``; None if missing or malformed."""
    try:
        identity = read_json(path, "run identity", follow=False)
    except DataError:
        return None
    data = identity.get("data") if isinstance(identity, dict) else None
    found = data.get("validation") if isinstance(data, dict) else None
    return found if isinstance(found, str) else None


def _bits_per_byte(
    run: RunFiles,
) -> tuple[float | None, int | None, Literal["evaluation", "validation"] | None]:
    """Return the newest bits per byte on the run's validation split, its step and its source.

    At equal steps, it is the evaluation's.
    """
    logged = [row for row in run.of_kind("validation") if number(row, "bits_per_byte") is not None]
    evaluated = own_bits_per_byte(run.tasks, run.validation_fingerprint)
    step = None if evaluated is None else number(evaluated, "step")
    if evaluated is not None and not (logged and logged[-1]["step"] > (step or 0)):
        return value_of(evaluated, "bits_per_byte"), None if step is None else int(step), "evaluation"
    return (number(logged[-1], "bits_per_byte"), logged[-1]["step"], "validation") if logged else (None, None, None)


def _num_parameters(run: RunFiles) -> int | None:
    try:
        return parsed(run).num_parameters() or None
    except RecipeError:
        return None


def _total_steps(run: RunFiles) -> int | None:
    """Return the run's last step by its recipe, which a run may change on its way, or as recorded by its last start."""
    training = run.recipe.get("training")
    asked = training.get("steps") if isinstance(training, dict) else None
    found = (session.get("to_step") for session in reversed(run.sessions))
    return next((steps for steps in (asked, *found) if type(steps) is int and steps > 0), None)


def _median_mfu(train: Iterable[Row]) -> float | None:
    rates = [(mfu, (number(row, "tflops") or 0.0) / mfu) for row in train if (mfu := number(row, "mfu"))]
    return _middle(mfu for mfu, peak in rates if math.isclose(peak, rates[-1][1]))  # another machine has another peak


def _middle(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return median(found) if found else None
