"""The training loop: run steps and record them; when due, validate, save and stop.

All inputs of the loop are functions of (seed, step, sample), so a run that stops after any step and resumes is the same
run.

A single process reacts to a signal between two micro-batches: it drops the unfinished step and saves the state after
the last finished one. Several ranks vote at the end of each step and stop after the same one: a rank that left in
mid-step would leave the others waiting for its gradients, and a vote for each micro-batch would make all ranks wait for
each other each time.
"""

import math
from functools import partial
from typing import Any

from hornbook.engine.loss_scale import SMALLEST, StaticScale
from hornbook.engine.step import train_step
from hornbook.engine.topology import patterns
from hornbook.errors import DivergedError, StoppedBySignal
from hornbook.parallel.device import memory_in_use
from hornbook.parallel.launched import Received, listen
from hornbook.run.fit_length import Deadline
from hornbook.run.histograms import send_histograms_if_due
from hornbook.run.training_run import TrainingRun
from hornbook.wording import counted

MAX_SKIPPED_IN_A_ROW = 20


def train_until_done(run: TrainingRun, stop_after: int | None = None) -> str | None:
    """Train ``run`` to its last step, or until early stopping.

    Args:
        run: the run, modified in place.
        stop_after: save and return after this step, where a signal would have raised StoppedBySignal.

    Returns:
        The name of a signal to this rank that came too late to stop the run, None without one.

    Raises:
        StoppedBySignal: on a signal; the state after the last finished step is saved.
        DivergedError: the losses of too many steps in a row, or of the last ones, were not finite.
        StorageError: several saves in a row, or the last one, failed.
    """
    with listen(run.console.interject) as signals, run.batches() as batches, run.world.explained(), run.saving():
        if run.recipe.sparsity.is_sparse and not run.state.progress.step:
            run.log_patterns(patterns(run.state.model, run.world))
        _measure(run)
        if run.why_stopped:  # by a measurement that a signal had interrupted
            return signals.name
        every_steps = run.recipe.tracking.histogram_every_steps
        look = [] if every_steps is None else [partial(send_histograms_if_due, run, every_steps)]
        deadline = Deadline.of(run)
        for micro_batches in batches:
            begin = partial(_begin, run, signals, len(micro_batches))
            try:
                run.record(train_step(run.state, micro_batches, run.step_config, begin, *look))
            except StoppedBySignal:  # in mid-step
                run.state.home.drop_gradients()
                is_signal = stopping = True
            else:
                if run.state.progress.skipped_in_a_row:
                    _refuse_smallest_scale(run)
                    _refuse_divergence(run)
                # all ranks stop after the same step; a finished run is still measured, since it cannot resume
                is_saved = run.saver.pending is not None and run.saver.pending.done()
                num_signals, num_saved = run.world.everyone.sum_integers([signals.name is not None, is_saved])
                is_signal = num_signals > 0
                stopping = (is_signal or run.state.progress.step == stop_after) and not run.is_finished
                if num_saved == run.world.size:
                    run.finish_saving()
                if deadline is not None and not stopping:
                    deadline.keep(run)
                if not stopping:
                    _measure(run)
            if run.state.progress.step and (stopping or run.is_due(run.recipe.checkpoint.every_steps)):
                run.save(must_succeed=stopping or run.is_finished)
            if run.is_finished or (stopping and not is_signal):
                break
            if stopping:
                told = f"stopped by {signals.name or 'a signal to another rank'}; {run.how_to_go_on()}"
                raise run.world.reported_by(0, StoppedBySignal(told))
    return signals.name


def _begin(run: TrainingRun, signals: Received, num_micro_batches: int, number: int) -> None:
    """Show the start of a micro-batch; on a signal, drop the step if there is no other rank."""
    if signals.name is not None and run.world.size == 1:
        raise StoppedBySignal(signals.name)
    if run.console.is_live and run.console.is_due():
        _show(run, number, num_micro_batches)


def _show(run: TrainingRun, number: int, num_micro_batches: int) -> None:
    """Draw the live display: the last step's metrics, the mean speed of the last steps, and the current micro-batch."""
    progress, result = run.state.progress, run.last_result
    row: dict[str, Any] = {"step": progress.step, "memory": memory_in_use(run.device)}
    if result is not None:
        seconds, tokens = (last - first for first, last in zip(run.recent[0], run.recent[-1], strict=True))
        row |= run.row(result, result.loss, result.terms, tokens / max(seconds, 1e-9))
    run.console.live(row, run.num_steps, micro_batch=(number + 1, num_micro_batches))


def _measure(run: TrainingRun) -> None:
    """Make the measurements due after the current step; interrupted ones are repeated after the resume."""
    evaluation, saving, progress = run.recipe.evaluation, run.recipe.checkpoint, run.state.progress
    if progress.validated_step < progress.step and run.is_due(evaluation.every_steps, saving.every_steps):
        run.validate()
    task_intervals = [evaluation.tasks_every_steps or evaluation.every_steps]
    if saving.best_by != "validation":
        task_intervals.append(saving.every_steps)
    if evaluation.tasks and progress.evaluated_step < progress.step and run.is_due(*task_intervals):
        from hornbook.run.scheduled_tasks import measure_tasks

        measure_tasks(run)
    if progress.sampled_step < progress.step and run.is_due(run.recipe.tracking.sample_every_steps):
        run.sample()


def _refuse_smallest_scale(run: TrainingRun) -> None:
    """Raise DivergedError if gradients overflow with a loss scale that is already the smallest."""
    progress, result = run.state.progress, run.last_result
    is_smallest = progress.loss_scale is not None and progress.loss_scale <= SMALLEST
    if is_smallest and result is not None and result.loss is not None and math.isfinite(result.loss):
        run.finish_saving()
        error = DivergedError(
            f"the loss scale fell to its minimum of {SMALLEST:g}, and the gradients of step {progress.step} still "
            f"overflow; {run.folder.what_is_saved()}: lower optimizer.learning_rate, or set precision.compute to bf16, "
            "and start a new run"
        )
        raise run.world.reported_by(0, error)


def _refuse_divergence(run: TrainingRun) -> None:
    progress, skipped = run.state.progress, run.state.progress.skipped_in_a_row
    if skipped < MAX_SKIPPED_IN_A_ROW and not run.is_finished:
        return
    run.finish_saving()
    if skipped >= MAX_SKIPPED_IN_A_ROW:
        run.set_aside(progress.step - skipped)
    result, mend = run.last_result, "lower optimizer.learning_rate or lengthen schedule.warmup_steps"
    is_loss_finite = result is not None and result.loss is not None and math.isfinite(result.loss)
    if is_loss_finite and isinstance(run.step_config.loss_scale, StaticScale):
        mend = 'lower precision.loss_scale or set precision.loss_scaling to "dynamic"'
    error = DivergedError(
        f"the loss or its gradients were not finite in {counted(skipped, 'step')} in a row up to step {progress.step}, "
        f"so none was saved; {run.folder.what_is_saved()}: {mend}, and start a new run"
    )
    raise run.world.reported_by(0, error)
