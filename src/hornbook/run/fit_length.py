"""Correct the number of steps of a run that has to end in time, while its learning rate is still constant.

    1,000 steps planned for 30 minutes; after 250, 10 minutes have passed
        -> (30 - 10) / 10 · 250 = 500 more steps, 750 in all, of which the last 65 % are the decay

Until the decay, the learning rate does not depend on the number of steps, so the run is the same as if the corrected
recipe, which the folder has from then on, had been given at first.
"""

import math
import time
from dataclasses import replace
from typing import Final

from hornbook.config import WarmupStableDecayConfig
from hornbook.optim.schedules import build_schedule
from hornbook.run.training_run import TrainingRun

_END: Final = 4.0  # seconds for the last checkpoint and the report
_TOLERANCE: Final = 0.03


def fit_length(run: TrainingRun, started: float) -> None:
    """Set the steps that fit, if they differ by more than a few percent; never so few that the decay has begun.

    Args:
        run: modified in place, on all ranks alike.
        started: `time.time` before its first step.
    """
    schedule, step = run.recipe.schedule, run.state.progress.step
    if not isinstance(schedule, WarmupStableDecayConfig) or run.ends_at is None:
        return
    now = time.time()
    seconds = (now - started) / step
    steps = step + int(max(0.0, run.ends_at - now - _END) / seconds)
    least = math.ceil((step + 1) / (1 - schedule.decay_fraction))
    steps = run.world.from_first(max(steps, least))
    if abs(steps / run.num_steps - 1) <= _TOLERANCE:
        return
    run.console.note(f"{steps:,} steps instead of {run.num_steps:,} fit the time: a step takes {seconds:.2f} s")
    run.recipe = replace(run.recipe, training=replace(run.recipe.training, steps=steps, epochs=None, tokens=None))
    run.num_steps = steps
    factor, peak = build_schedule(schedule, steps), run.recipe.optimizer.learning_rate
    run.step_config = replace(run.step_config, schedule=lambda index: peak * factor(index))
    if run.world.is_first:
        run.folder.correct(run.recipe)
