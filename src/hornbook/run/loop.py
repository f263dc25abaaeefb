"""The training loop: take a batch, make a step, record it; now and then look, keep, or stop.

Everything that the loop touches is a function of (seed, step, sample), so stopping after any step and going on later is
the same run.
"""

from hornbook.engine.step import train_step
from hornbook.errors import DivergedError, StoppedBySignal
from hornbook.run.scheduled_tasks import measure_tasks
from hornbook.run.signals import listen
from hornbook.run.training_run import TrainingRun
from hornbook.wording import counted

MAX_SKIPPED_IN_A_ROW = 20


def train_until_done(run: TrainingRun) -> None:
    """Train ``run`` to its last step, or to the one with which early stopping ends it.

    Raises:
        StoppedBySignal: a signal came; the state after the last whole step is saved.
        DivergedError: too many steps in a row were not finite, or the last ones of the run.
        StorageError: checkpoints could not be written several times in a row, or at the end.
    """
    with listen(is_first=run.world.is_first) as signals, run.batches() as batches, run.world.explained():
        _measure(run)
        if run.why_stopped:  # by a measurement that a signal had cut off
            return
        for micro_batches in batches:
            run.record(train_step(run.state, micro_batches, run.step_config))
            if run.state.progress.skipped_in_a_row:
                _refuse_divergence(run)
            # all ranks stop after the same step; what ends a run is measured, since no resume would make up for it
            stopping = run.world.any(signals.name is not None) and not run.is_finished
            if not stopping:
                _measure(run)
            if run.is_due(run.recipe.checkpoint.every_steps) or stopping:
                run.save(must_succeed=stopping or run.is_finished)
            if run.is_finished:
                return
            if stopping:
                raise StoppedBySignal(f"stopped by {signals.name or 'a signal to another rank'}; {run.how_to_go_on()}")


def _measure(run: TrainingRun) -> None:
    """Measure and show what is due after the current step; what a signal cut off is made up for after the resume."""
    if run.owes("validation"):
        run.validate()
    if run.owes("tasks"):
        measure_tasks(run)
    if run.owes("sample"):
        run.sample()


def _refuse_divergence(run: TrainingRun) -> None:
    progress, skipped = run.state.progress, run.state.progress.skipped_in_a_row
    if skipped < MAX_SKIPPED_IN_A_ROW and not run.is_finished:
        return
    if skipped >= MAX_SKIPPED_IN_A_ROW:
        run.set_aside(progress.step - skipped)
    raise DivergedError(
        f"the loss or its gradients were not finite in {counted(skipped, 'step')} in a row up to step {progress.step}, "
        f"so none of them is saved; {run.what_is_saved()}: lower optimizer.learning_rate or lengthen "
        "schedule.warmup_steps, and start a new run"
    )
