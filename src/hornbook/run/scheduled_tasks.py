"""Run evaluation tasks during training, every given number of steps.

::

    [evaluation] tasks, task_data -> check_tasks_of
                                  -> measure_tasks -> rows of kind "task" in metrics.jsonl -> the report
                                                   -> the best checkpoint, if checkpoint.best_by names one of them

Windows do not overlap here, as in the validation loss: faster, and slightly worse than the result of `hornbook
evaluate`.

Training continues if a task fails, for example because its data is gone. Several ranks compute a task together, and one
that failed alone would leave the others waiting, so they first agree that all can read the data, at the price of
reading it twice. A later failure ends the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from hornbook.config import Recipe
from hornbook.errors import HornbookError, UserError
from hornbook.evaluate import tasks, text_name
from hornbook.evaluate.tasks import Row, TaskInput
from hornbook.exchange.restore import LoadedModel
from hornbook.run.training_run import TrainingRun

TASK_DATA: Final = "evaluation.task_data"
"""The recipe option that sets the data of tasks."""


def check_tasks_of(run: TrainingRun) -> None:
    """Raise an error, before training, for tasks that cannot be run on some rank.

    Raises:
        UserError, DataError: a task or the ``best_by`` metric is unknown, or a task's data is missing or malformed.
    """
    refuse_unknown_metric(run.recipe)
    error, failed = _checked(run, run.recipe.evaluation.tasks, _input(run), _data(run))
    if failed:
        raise error or UserError(f"the tasks of the recipe cannot be run: {_of_others(failed)}")


def refuse_unknown_metric(recipe: Recipe) -> None:
    """Raise UserError if no task measures ``checkpoint.best_by``."""
    task, _, metric = recipe.checkpoint.best_by.partition("/")
    if metric:
        tasks.higher_is_better(task, metric)


def measure_tasks(run: TrainingRun) -> None:
    """Run all tasks after the current step and log their rows; warn of those that cannot be run.

    Raises:
        HornbookError: a task failed on one of several ranks although all could read its data.
    """
    run.state.progress.evaluated_step = run.state.progress.step
    given, data = _input(run), _data(run)
    measure = _measure_alone if run.world.size == 1 else _measure_together
    with run.paused():
        for name in run.recipe.evaluation.tasks:
            measure(run, name, replace(given, data=data.get(name)))


def _measure_alone(run: TrainingRun, name: str, given: TaskInput) -> None:
    try:
        _log(run, name, tasks.run_task(name, given), text_name(name, given))
    except HornbookError as error:
        _warn(run, name, str(error))


def _measure_together(run: TrainingRun, name: str, given: TaskInput) -> None:
    error, failed = _checked(run, [name], given, {name: given.data} if given.data else {})
    if failed:
        _warn(run, name, str(error or _of_others(failed)))
    else:
        _log(run, name, tasks.run_task(name, given), text_name(name, given))


def _checked(
    run: TrainingRun, names: Sequence[str], given: TaskInput, data: Mapping[str, str]
) -> tuple[HornbookError | None, list[int]]:
    """Return the error that prevents this rank from running tasks, if any, and the ranks that have one."""
    found = None
    try:
        tasks.check_tasks(names, given, data)
    except HornbookError as error:
        found = error
    return found, run.world.ranks_where(found is not None)


def _of_others(failed: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, failed))} cannot read the data; all ranks need access to it"


def _warn(run: TrainingRun, name: str, why: str) -> None:
    run.console.warn(f"task {name} failed, training continues: {why}")


def _log(run: TrainingRun, name: str, rows: list[Row], text: str | None) -> None:
    step = run.state.progress.step
    run.console.task({"step": step, "task": name, **rows[0].fields()})
    for row in rows:
        if run.metrics is not None:
            run.metrics.append({"kind": "task", "step": step, "task": name, "data": text, **row.fields()})
        measure = f"{name}/{row.metric}"
        if measure == run.recipe.checkpoint.best_by:
            run.note_best(measure, row.value, higher=tasks.higher_is_better(name, row.metric))


def _data(run: TrainingRun) -> dict[str, str]:
    return tasks.assign_data(run.recipe.evaluation.task_data, run.recipe.evaluation.tasks, TASK_DATA)


def _input(run: TrainingRun) -> TaskInput:
    loaded = LoadedModel(
        model=run.state.model,
        recipe=run.recipe,
        tokenizer=run.tokenizer,
        step=run.state.progress.step,
        path=run.folder.path,
    )
    return TaskInput(
        loaded=loaded,
        data_option=TASK_DATA,
        forward=run.step_config.forward,
        ranks=run.world.data,
        micro_batch_size=run.recipe.training.micro_batch_size,
        overlap=0,
    )
