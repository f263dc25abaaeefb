"""Evaluation tasks: a name, a function from a model to rows, and each row says by what convention it was measured.

::

    run_task("lambada", TaskInput(loaded=..., data="lambada_test.jsonl", ...))
        -> [Row(metric="last_word_accuracy", value=0.326, convention="share of passages of which every ..."), ...]

A comparison is worth nothing without its convention, so a row cannot be made without one. All ranks of a run call a
task alike and get the same rows; one that knows nothing of ranks computes everything on each of them.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

import torch

from hornbook.config import LabelledConfig
from hornbook.config.options import definition_of, split_entry
from hornbook.config.suggest import did_you_mean
from hornbook.errors import CheckpointError, UserError
from hornbook.exchange.restore import LoadedModel
from hornbook.model.forward import Forward, evaluation_mode, forward_resident
from hornbook.parallel.device import dtype_name
from hornbook.parallel.ranks import Ranks
from hornbook.text.tokenizer import Tokenizer

Learned = TypeVar("Learned", bound=LabelledConfig)


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a number is made of, such as the figures of each class."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of an evaluation."""

    metric: str
    """Names the number within its task."""
    value: float
    convention: str
    comparable_with: str | None = None
    """Published figures that were measured by this convention, on the same text."""
    compute: str | None = None
    """Dtype of the model's activations, "fp32" or "bf16"; "none" for a number that no model computed. `run_task` fills
    it in where a task leaves it out."""
    table: Table | None = None
    """Printed and saved by ``hornbook evaluate``; the log of a training has the number alone."""

    def fields(self) -> dict[str, Any]:
        """Return the number by itself: all fields but the table."""
        fields = asdict(replace(self, table=None))
        del fields["table"]
        return fields

    def as_json(self) -> dict[str, Any]:
        """Return all fields, with a table if there is one; a number that is not finite is null."""
        table = {"table": asdict(self.table)} if self.table else {}
        return {**self.fields(), "value": self.value if math.isfinite(self.value) else None, **table}


@dataclass(frozen=True, kw_only=True)
class TaskInput:
    """What a task gets."""

    loaded: LoadedModel
    data: str | None = None
    """The path that the user gave for this task, or None."""
    forward: Forward = forward_resident
    """Takes a batch through the model."""
    ranks: Ranks = field(default_factory=Ranks)
    """The data-parallel ranks that share the work."""
    micro_batch_size: int = 16
    """Sequences at a time."""
    window: int | None = None
    """Tokens of context at most; None for the sequence length that the model was trained with."""
    overlap: int | None = None
    """Tokens that a window shares with the one before; None leaves it to the task. An encoder's share none."""
    max_sequences: int | None = None
    """Of an encoder's sequences, score so many at most, spread evenly; None leaves it to the task."""

    def require_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer.

        Raises:
            CheckpointError: there is none, or it has tokens that the model does not know.
        """
        tokenizer, vocab_size = self.loaded.require_tokenizer(), self.loaded.model.vocab_size
        if vocab_size < tokenizer.vocab_size <= self.loaded.model.num_ids:
            raise CheckpointError(
                f"{self.loaded.path} has a vocabulary cut to {vocab_size:,} of {tokenizer.vocab_size:,} tokens "
                "(model.clamp_tokens): it gives no probability to the others, and this task scores all of them"
            )
        if tokenizer.vocab_size > vocab_size:
            raise CheckpointError(
                f"{self.loaded.path} has a tokenizer of {tokenizer.vocab_size:,} tokens and a model of {vocab_size:,}: "
                "put the tokenizer there that the model was trained with"
            )
        return tokenizer

    def labelled_data(self) -> str:
        """Return the path of the file that was given, or else of the run's validation file.

        Raises:
            UserError: neither is known.
        """
        if path := self.data or self.loaded.recipe.data.validation:
            return path
        raise UserError(
            f"{self.loaded.path} has no validation file to score (data.validation): name a labelled file by "
            "`--data FILE` (in a recipe by evaluation.task_data)"
        )

    def require_objective(self, kind: type[Learned], lacks: str) -> Learned:
        """Return the objective that the model learned.

        Raises:
            UserError: it is of another kind; ``lacks`` says what the model cannot do.
        """
        objective = self.loaded.recipe.objective
        if not isinstance(objective, kind):
            raise UserError(
                f"{self.loaded.path} learned {objective.name!r} and {lacks}: fine-tune it with "
                f"--objective.name {kind.name}, see docs/fine-tuning.md"
            )
        return objective

    def require_data(self, what: str) -> str:
        """Return the path of the task's data; ``what`` says in the error what they are.

        Raises:
            UserError: none was given.
        """
        if self.data is None:
            raise UserError(
                f"the task needs {what}: pass `--data FILE` (or `--data TASK=FILE`; in a recipe, set "
                "evaluation.task_data)"
            )
        return self.data

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.loaded.model.device

    @property
    def window_length(self) -> int:
        """Tokens of a window, given or the model's own.

        Raises:
            UserError: the model takes no sequence as long.
        """
        length = self.window or self.loaded.recipe.sequence_length
        most = self.loaded.model.max_positions
        if length > most:
            raise UserError(f"a window of {length} tokens is longer than the model's {most} positions: lower --window")
        return length

    def overlap_or(self, default: int) -> int:
        """Tokens that windows share: what the user said, or ``default``.

        Raises:
            UserError: it is not less than a window.
        """
        overlap = default if self.overlap is None else self.overlap
        if overlap >= self.window_length:
            raise UserError(
                f"windows of {self.window_length} tokens cannot overlap by {overlap}: lower --overlap to "
                f"{self.window_length - 1} at most"
            )
        return overlap


Measure: TypeAlias = Callable[[TaskInput], list[Row]]
Check: TypeAlias = Callable[[TaskInput], object]
Models: TypeAlias = Literal["decoder", "encoder", "any"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task: a function from a model to rows, and what is known of it beforehand."""

    measure: Measure
    check: Check | None = None
    """Raises what ``measure`` would raise for its input, without the model's work; called before a training."""
    models: Models = "any"
    """The kind of model that it can measure; it is refused for others."""
    lower: Collection[str] = ()
    """Metrics of which less is better; ``checkpoint.best_by`` may name them."""
    higher: Collection[str] = ()
    """Metrics of which more is better."""
    scores_held_out: bool = False
    """Whether it scores the run's validation data where no other are named; the record of an evaluation says so."""


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
    """Return a decorator that makes a function available as ``hornbook evaluate --tasks NAME``.

    A function that is defined again, by a notebook's cell or a module that is reloaded, replaces itself.

    The arguments are the fields of `Task`.

    Raises:
        UserError: another task has the name; the decorator says so.
    """

    def add(measure: Measure) -> Measure:
        there = definition_of(TASKS[name].measure if name in TASKS else measure)
        if there != definition_of(measure):
            raise UserError(f"there is a task {name!r} already, of {there[0]}; choose another name")
        TASKS[name] = Task(
            measure=measure, check=check, models=models, lower=lower, higher=higher, scores_held_out=scores_held_out
        )
        return measure

    return add


def task_names() -> list[str]:
    """Return the names of all registered tasks."""
    return sorted(TASKS)


def default_task(loaded: LoadedModel) -> str:
    """Return the task that measures a model where nobody says which: a fine-tuned one by what it was tuned for."""
    if isinstance(learned := loaded.recipe.objective, LabelledConfig):
        return learned.name
    return "bits_per_byte" if loaded.model.is_causal else "masked_lm"


def find_task(name: str) -> Task:
    """Return a task by its name.

    Raises:
        UserError: there is none.
    """
    if name not in TASKS:
        known = task_names()
        raise UserError(f"there is no task {name!r}, the tasks are {', '.join(known)}{did_you_mean(name, known)}")
    return TASKS[name]


def higher_is_better(task: str, metric: str) -> bool:
    """Tell which way a metric of a task is better.

    Raises:
        UserError: the task is unknown, or does not say so of this metric.
    """
    found = find_task(task)
    known = [*found.lower, *found.higher]
    if metric not in known:
        raise UserError(
            f"task {task!r} has no metric {metric!r} to choose a checkpoint by, expected one of: "
            f"{', '.join(known) or 'none'}{did_you_mean(metric, known)}"
        )
    return metric in found.higher


def assign_data(words: Sequence[str], tasks: Sequence[str]) -> dict[str, str]:
    """Return the data of each task that has any: ``["lambada=x", "y"]`` is x for lambada and y for all others.

    Raises:
        UserError: a word names a task that is not run, or data are given twice.
    """
    paths: dict[str | None, str] = {}
    for name, path in map(split_entry, words):
        if name is not None and name not in tasks:
            raise UserError(f"--data names {name!r}, which is not among the tasks{did_you_mean(name, tasks)}")
        if name in paths:
            raise UserError(f"two --data entries for {name or 'all tasks'}: give one PATH, or TASK=PATH for each")
        paths[name] = path
    return {task: paths[task] if task in paths else paths[None] for task in tasks if task in paths or None in paths}


def check_tasks(tasks: Sequence[str], given: TaskInput, data: Mapping[str, str]) -> None:
    """Raise what the tasks would raise for their input, as far as that can be told without the model's work.

    Raises:
        UserError: a name is not registered, or of a task for another kind of model; or whatever a task says.
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
        UserError: the name is not registered, or whatever the task says of its input.
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
            f"the task {name!r} scores the prediction of tokens, and {loaded.path} learned {learned.name}: take the "
            f"task {learned.name}, or the model that it was fine-tuned from"
        )
    if models not in ("any", own):
        fitting = [other for other in task_names() if TASKS[other].models in ("any", own)]
        raise UserError(
            f"the task {name!r} is for {models}s, and {loaded.path} is {found}: take one of {', '.join(fitting)}"
        )
