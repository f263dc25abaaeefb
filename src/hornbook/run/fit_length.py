"""Correct the number of steps of a run that has to end in time, again and again.

    600 steps planned for 30 minutes; after 61, 5 minutes have passed
        -> (30 - 5) min / 4.9 s = 306 more steps: 367 in all, noted as schedule.lengths = ["0=600", "61=367"]

Until the decay, the learning rate does not depend on the number of steps. A decay that has begun continues from its
present rate to the new end. Either way the steps that are done have the rates of the corrected recipe, which the folder
has from then on, so training that recipe repeats the run bit for bit, and so does a resume.
"""

import time
from dataclasses import dataclass, replace
from typing import Final, Self

from hornbook.config import WarmupStableDecayConfig
from hornbook.config.optimizers import read_steps
from hornbook.engine.validation import SCORING
from hornbook.optim.schedules import build_schedule, warmup_steps_of
from hornbook.plan.dial import MOST_EPOCHS
from hornbook.run.reached import final_windows
from hornbook.run.training_run import TrainingRun

_END: Final = 4.0  # seconds for the report and the end of the process
_TOLERANCE: Final = 0.03  # of the whole time, by which the run may end too early or too late
_SHARE, _MOST = 10, 40  # the clock is read after a tenth of the remaining steps, or a 40th of all if that is more


@dataclass(kw_only=True)
class Deadline:
    """The time at which a run shall end, and where its clock was last read."""

    ends_at: float
    """`time.time` of the end."""
    seconds: float
    """Of the whole run."""
    next_step: int
    """When to read the clock again, the same on all ranks."""
    started: tuple[float, float, int]
    """`time.time`, and the progress's seconds and steps at the start of this session."""
    last: tuple[float, int]
    """The progress's seconds and its steps when the clock was last read."""

    @classmethod
    def of(cls, run: TrainingRun) -> Self | None:
        """Return the deadline of a run by its folder's choice; None if its length is fixed.

        A resumed run has the time that its finished steps have left.
        """
        limit = run.folder.time_limit(run.recipe.name) if run.world.is_first else None
        if not run.world.any(limit is not None) or not isinstance(run.recipe.schedule, WarmupStableDecayConfig):
            return None
        now, progress, (begun, seconds) = time.time(), run.state.progress, limit or (0.0, 0.0)
        remaining = seconds - progress.seconds
        if not progress.step and now - begun < seconds / 2:  # else the first start was interrupted long ago
            remaining -= now - begun
        remaining_steps, warm_up = run.num_steps - progress.step, warmup_steps_of(run.recipe.schedule, run.num_steps)
        corrected = [int(step) for step in read_steps(run.recipe.schedule.lengths or ("0=1",))]
        return cls(
            ends_at=now + remaining,
            seconds=seconds,
            # after the warm-up, the first of ten validations, and the corrections that a resumed run repeats
            next_step=1 + max(progress.step + remaining_steps // _SHARE, warm_up, *corrected),
            started=(now, progress.seconds, progress.step),
            last=(progress.seconds, progress.step),
        )

    def keep(self, run: TrainingRun) -> None:
        """Read the clock if that is due, and set the steps that fit if the end would be off; on all ranks alike."""
        schedule, progress = run.recipe.schedule, run.state.progress
        if progress.step < self.next_step or run.is_finished:
            return
        assert isinstance(schedule, WarmupStableDecayConfig)
        now, (began, seconds, step) = time.time(), self.started
        pauses = (now - began) / max(1e-9, progress.seconds - seconds)  # for validation, checkpoints and samples
        mean = (progress.seconds - seconds) / (progress.step - step)
        recent = (progress.seconds - self.last[0]) / (progress.step - self.last[1])
        step_seconds = pauses * (mean + recent) / 2  # half of a burst of other load may be over soon
        self.last = (progress.seconds, progress.step)
        last = final_windows(run, run.num_steps) * SCORING / run.recipe.training.global_batch_size  # in steps
        fitting = progress.step + max(1, int((self.ends_at - now - _END) / step_seconds - last))
        most = MOST_EPOCHS * run.samples.num_samples // run.recipe.training.global_batch_size
        steps = min(fitting, max(most, run.num_steps))
        is_close = abs(steps - run.num_steps) * step_seconds <= _TOLERANCE * self.seconds
        steps = run.world.from_first(run.num_steps if is_close else steps)
        if steps != run.num_steps:
            run.console.note(
                f"{steps:,} steps instead of {run.num_steps:,} fit the time: one takes {step_seconds:.3g} s"
            )
            planned = read_steps(schedule.lengths or (f"0={run.num_steps}",)) | {progress.num_updates: steps}
            schedule = replace(schedule, lengths=tuple(f"{at}={length:.0f}" for at, length in planned.items()))
            training = replace(run.recipe.training, steps=steps, epochs=None, tokens=None)
            run.recipe, run.num_steps = replace(run.recipe, schedule=schedule, training=training), steps
            factor, peak = build_schedule(schedule, steps), run.recipe.optimizer.learning_rate
            run.step_config = replace(run.step_config, schedule=lambda index: peak * factor(index))
            if run.world.is_first:
                run.folder.correct(run.recipe)
        self.next_step = progress.step + max(1, (steps - progress.step) // _SHARE, steps // _MOST)
