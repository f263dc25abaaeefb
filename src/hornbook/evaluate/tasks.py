"""Evaluation tasks: named functions from a model to rows, each of which states the convention of its measurement.

::

    run_task("lambada", TaskInput(loaded=..., data="lambada_test.jsonl", ...))
        -> [Row(metric="last_word_accuracy", value=0.326, convention="share of passages of which every ..."), ...]

A metric without its convention cannot be compared, so every row must have one. All ranks of a run call a task alike and
get the same rows; a task that ignores ranks computes everything on each of them.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

import torch

from hornbook.config import LabelledConfig
from hornbook.config.options import definition_of, split_entry
from hornbook.config.suggest import did_you_mean
from hornbook.config.task_names import refuse_unknown_task
from hornbook.errors import CheckpointError, UserError
from hornbook.exchange.restore import LoadedModel
from hornbook.model.language_model import Forward, evaluation_mode, forward_resident
from hornbook.parallel.device import dtype_name
from hornbook.parallel.ranks import Ranks
from hornbook.text.tokenizer import Tokenizer

Learned = TypeVar("Learned", bound=LabelledConfig)


@dataclass(frozen=True, kw_only=True)
class Table:
    """The details of a metric, such as those of each class."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One metric of an evaluation."""

    metric: str
    """Name of the metric within its task."""
    value: float
    convention: str
    comparable_with: str | None = None
    """Published results with this convention on the same text."""
    compute: str | None = None
    """Dtype of the model's activations, "fp32" or "bf16"; "none" for a number without a model. If a task leaves it out,
    `run_task` sets it."""
    table: Table | None = None
    """Printed and saved by ``hornbook evaluate``, but not in a training run's log."""

    def fields(self) -> dict[str, Any]:
        """Return all fields except the table."""
        fields = asdict(replace(self, table=None))
        del fields["table"]
        return fields

    def as_json(self) -> dict[str, Any]:
        """Return all fields, with the table, if any; non-finite values are null."""
        table = {"table": asdict(self.table)} if self.table else {}
        return {**self.fields(), "value": self.value if math.isfinite(self.value) else None, **table}


@dataclass(frozen=True, kw_only=True)
class TaskInput:
    """The input of a task."""

    loaded: LoadedModel
    data: str | None = None
    """The path that the user passed for this task, or None."""
    data_option: str = "data"
    """The argument or recipe option by which the user sets ``data``, for messages."""
    forward: Forward = forward_resident
    """Runs the model on a batch."""
    ranks: Ranks = field(default_factory=Ranks)
    """The data-parallel ranks that share the computation."""
    micro_batch_size: int = 16
    """Sequences per batch."""
    window: int | None = None
    """The most tokens of context; None for the training sequence length."""
    overlap: int | None = None
    """Tokens that a window shares with the previous one; None for the task's default. Does not apply to encoders."""
    max_sequences: int | None = None
    """The most sequences of an encoder to score, spread evenly; None for the task's default."""

    def require_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer.

        Raises:
            CheckpointError: there is none, or it has tokens outside the model's vocabulary.
        """
        tokenizer, vocab_size = self.loaded.require_tokenizer(), self.loaded.model.vocab_size
        if vocab_size < tokenizer.vocab_size <= self.loaded.model.num_ids:
            raise CheckpointError(
                f"{self.loaded.path} has a vocabulary cut to {vocab_size:,} of {tokenizer.vocab_size:,} tokens "
                "(model.clamp_tokens): the others have no probability, but this task scores all of them"
            )
        if tokenizer.vocab_size > vocab_size:
            raise CheckpointError(
                f"{self.loaded.path} has a tokenizer of {tokenizer.vocab_size:,} tokens, its model {vocab_size:,}:  "
                "replace it with the tokenizer that the model was trained with"
            )
        return tokenizer

    def labelled_data(self) -> str:
        """Return the path of the task's data or, by default, of the run's validation file.

        Raises:
            UserError: there is neither.
        """
        if path := self.data or self.loaded.recipe.data.validation:
            return path
        raise UserError(
            f"{self.loaded.path} has no validation file to score (data.validation): name a labeled file by "
            f"`{self.data_option}=FILE`"
        )

    def require_objective(self, kind: type[Learned], lacks: str) -> Learned:
        """Return the objective that the model was trained with.

        Raises:
            UserError: it is of another kind; the message has ``lacks``, what the model cannot do.
        """
        objective = self.loaded.recipe.objective
        if not isinstance(objective, kind):
            raise UserError(
                f"{self.loaded.path} was trained with {objective.name!r} and {lacks}: fine-tune it with "
                f"`objective.name='{kind.name}'`, see docs/fine-tuning.md"
            )
        return objective

    def require_data(self, what: str) -> str:
        """Return the path of the task's data; ``what`` describes it in the error message.

        Raises:
            UserError: there is none.
        """
        if self.data is None:
            option = self.data_option
            raise UserError(f"the task needs {what}: pass `{option}=FILE`, or `{option}=TASK=FILE` for one of several")
        return self.data

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self.loaded.model.device

    @property
    def window_length(self) -> int:
        """Tokens per window: ``window``, or the model's training sequence length.

        Raises:
            UserError: the window is longer than the model's positions.
        """
        length = self.window or self.loaded.recipe.sequence_length
        most = self.loaded.model.max_positions
        if length > most:
            raise UserError(f"a window of {length} tokens is longer than the model's {most} positions: lower `window`")
        return length

    def overlap_or(self, default: int) -> int:
        """Return the tokens that windows share: ``overlap``, or ``default``.

        Raises:
            UserError: it is not smaller than a window.
        """
        overlap = default if self.overlap is None else self.overlap
        if overlap >= self.window_length:
            raise UserError(
                f"windows of {self.window_length} tokens cannot overlap by {overlap}: lower `overlap` to "
                f"{self.window_length - 1} at most"
            )
        return overlap


Measure: TypeAlias = Callable[[TaskInput], list[Row]]
Check: TypeAlias = Callable[[TaskInput], object]
Models: TypeAlias = Literal["decoder", "encoder", "any"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """An evaluation task: a function from a model to rows, and its properties."""

    measure: Measure
    check: Check | None = None
    """Raises the errors of ``measure`` for an input without computing; called before a training starts."""
    models: Models = "any"
    """The kind of model that it can measure."""
    lower: Collection[str] = ()
    """Metrics for which lower is better; ``checkpoint.best_by`` may name them."""
    higher: Collection[str] = ()
    """Metrics for which higher is better."""
    scores_held_out: bool = False
    """Whether it scores the run's validation data by default, which is then recorded with the evaluation."""


TASKS: dict[str, Task] = {}
"""The tasks by name: those of `hornbook.evaluate`, and those that ``register_task`` adds."""


def register_task(
    name: str,
    *,
    models: Models = "any",
    check: Check | None = None,
    lower: Collection[str] = (),
    higher: Collection[str] = (),
    scores_held_out: bool = False,
) -> Callable[[Measure], Measure]:
    """Return a decorator that registers a function as ``hornbook evaluate --tasks NAME``.

    Defining the same function again, as in a notebook or a reloaded module, replaces it.

    The arguments are the fields of `Task`.

    Raises:
        UserError: raised by the decorator if another task has the name.
    """

    def add(measure: Measure) -> Measure:
        there = definition_of(TASKS[name].measure if name in TASKS else measure)
        if there != definition_of(measure):
            raise UserError(f"task {name!r} is already registered by {there[0]}; choose another name")
        TASKS[name] = Task(
            measure=measure, check=check, models=models, lower=lower, higher=higher, scores_held_out=scores_held_out
        )
        return measure

    return add


def task_names() -> list[str]:
    """Return the names of all registered tasks."""
    return sorted(TASKS)


def default_task(loaded: LoadedModel) -> str:
    """Return the default task of a model; for a fine-tuned one, that of its objective."""
    if isinstance(learned := loaded.recipe.objective, LabelledConfig):
        return learned.name
    return "bits_per_byte" if loaded.model.is_causal else "masked_lm"


def find_task(name: str) -> Task:
    """Return a task by its name.

    Raises:
        UserError: there is no such task.
    """
    refuse_unknown_task(name, task_names())
    return TASKS[name]


def higher_is_better(task: str, metric: str) -> bool:
    """Return whether higher values of a task's metric are better.

    Raises:
        UserError: the task is unknown, or has no direction for this metric.
    """
    found = find_task(task)
    known = [*found.lower, *found.higher]
    if metric not in known:
        raise UserError(
            f"task {task!r} has no metric {metric!r} to choose a checkpoint by, expected one of: "
            f"{', '.join(known) or 'none'}{did_you_mean(metric, known)}"
        )
    return metric in found.higher


def assign_data(words: Sequence[str], tasks: Sequence[str], option: str = "data") -> dict[str, str]:
    """Return the data of each task that has some: ``["lambada=x", "y"]`` is x for lambada and y for all others.

    Args:
        words: the entries.
        tasks: those that run.
        option: see `TaskInput.data_option`.

    Raises:
        UserError: an entry names a task that is not run, or data are named twice.
    """
    paths: dict[str | None, str] = {}
    for name, path in map(split_entry, words):
        if name is not None and name not in tasks:
            raise UserError(f"`{option}` names {name!r}, which is not among the tasks{did_you_mean(name, tasks)}")
        if name in paths:
            found = name or "all tasks"
            raise UserError(f"two entries of `{option}` for {found}: give one PATH, or TASK=PATH for each")
        paths[name] = path
    return {task: paths[task] if task in paths else paths[None] for task in tasks if task in paths or None in paths}


def check_tasks(tasks: Sequence[str], given: TaskInput, data: Mapping[str, str]) -> None:
    """Raise the errors of the tasks for their input that can be found without computing.

    Raises:
        UserError: a task is not registered, is for another kind of model, or rejects its input.
    """
    for name in tasks:
        _refuse_other_models(name, given.loaded)
    for name in tasks:
        task = find_task(name)
        if task.check is not None:
            task.check(replace(given, data=data.get(name)))


@torch.no_grad()
def run_task(name: str, given: TaskInput) -> list[Row]:
    """Measure one task, with the model in evaluation mode; each row names the precision.

    Raises:
        UserError: the task is not registered, or rejects its input.
    """
    with evaluation_mode(given.loaded.model):
        rows = find_task(name).measure(given)
    compute = dtype_name(given.loaded.model.embedding.compute_dtype)
    return [row if row.compute else replace(row, compute=compute) for row in rows]


def _refuse_other_models(name: str, loaded: LoadedModel) -> None:
    own, found = ("decoder", "a decoder") if loaded.model.is_causal else ("encoder", "an encoder")
    models, learned = find_task(name).models, loaded.recipe.objective
    if models == own == "decoder" and isinstance(learned, LabelledConfig):
        raise UserError(
            f"the task {name!r} scores predicted tokens, but {loaded.path} was trained with {learned.name}: use the "
            f"task {learned.name}, or the model that it was fine-tuned from"
        )
    if models not in ("any", own):
        fitting = [other for other in task_names() if TASKS[other].models in ("any", own)]
        fitting = [learned.name] if isinstance(learned, LabelledConfig) else fitting
        raise UserError(
            f"the task {name!r} is for {models}s, but {loaded.path} is {found}: use {'one of ' * (len(fitting) > 1)}"
            f"{', '.join(fitting)}"
        )
