"""The logs and trackers of a run: opened after a start was accepted, without the rows that a resume writes again."""

from contextlib import ExitStack

from hornbook.config.recipe import flatten
from hornbook.errors import HornbookError
from hornbook.ops.native.kernels import in_use
from hornbook.run.training_run import TrainingRun
from hornbook.track.metrics import MetricsLog, cut_back
from hornbook.track.trackers.delivery import Trackers
from hornbook.track.trackers.tracker import TrackedRun


def open_logs(run: TrainingRun, stack: ExitStack) -> None:
    """Record this start, and open the logs without the rows that will be written again, and the trackers.

    Those rows are of later steps, or of what a signal cut off. For the rank that writes.

    Args:
        run: gets its logs and trackers.
        stack: closes them.
    """
    folder, progress = run.folder, run.state.progress
    try:
        folder.note_session(progress.step, run.num_steps, in_use())
    except HornbookError as error:  # the file is damaged or cannot be written; a run does without
        run.console.warn(f"cannot record this start: {error}")
    measured = {"validation": progress.validated_step, "task": progress.evaluated_step}
    for path, step in ((folder.metrics, progress.step), (folder.samples, progress.sampled_step)):
        if path.exists():
            cut_back(path, step, measured)
    metrics, samples = MetricsLog(folder.metrics, run.console.warn), MetricsLog(folder.samples, run.console.warn)
    if run.recipe.tracking.trackers and not run.is_finished:
        run.trackers = stack.enter_context(_opened_trackers(run))
        metrics.also, samples.also = run.trackers.row, run.trackers.sample
    run.metrics, run.samples_log = stack.enter_context(metrics), stack.enter_context(samples)


def _opened_trackers(run: TrainingRun) -> Trackers:
    tracking = run.recipe.tracking
    tracked = TrackedRun(
        name=run.recipe.name,
        project=tracking.project,
        folder=run.folder.path,
        config={key: list(value) if isinstance(value, tuple) else value for key, value in flatten(run.recipe).items()},
        step=run.state.progress.step,
        run_id=None,
    )
    return Trackers(tracking.trackers, tracked, run.console.warn)
