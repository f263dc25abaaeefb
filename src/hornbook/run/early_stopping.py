"""Early stopping: a run ends when what its best checkpoint is chosen by has stopped improving.

    checkpoint.best_by "validation", patience 2, min delta 0.1

    step          10     20     30     40
    loss          3.0    2.5    2.45   2.6
    stale         0      0      1      2 -> the run ends after step 40; its best checkpoint stays

After Prechelt, "Early stopping - but when?" (1998), with the patience of Keras and transformers. The counters are part
of the run's progress, so a run that was resumed stops where an uninterrupted one does.
"""

import math

from hornbook.config import EvaluationConfig
from hornbook.engine.state import Progress
from hornbook.wording import counted


def note_measurement(progress: Progress, config: EvaluationConfig, measure: str, value: float, *, higher: bool) -> None:
    """Count a measurement, in place.

    Args:
        progress: of the run.
        config: says which change counts as an improvement.
        measure: what was measured; values of different ones are not compared.
        value: that of the current step; one that is not finite is no improvement.
        higher: whether higher values are better.
    """
    before = progress.stopping_value if progress.stopping_by == measure else None
    gain = math.inf if before is None else (value - before if higher else before - value)
    improved = math.isfinite(value) and gain > config.early_stopping_min_delta
    progress.stale_measurements = 0 if improved or progress.stopping_by != measure else progress.stale_measurements + 1
    progress.stopping_by, progress.stopping_value = measure, value if improved else before


def why_stopped(progress: Progress, config: EvaluationConfig) -> str | None:
    """Say why the run has ended before its last step; None where it has not."""
    patience = config.early_stopping_patience
    if patience is None or progress.stale_measurements < patience:
        return None
    delta = f" by more than {config.early_stopping_min_delta:g}" if config.early_stopping_min_delta else ""
    best = "never finite" if progress.stopping_value is None else f"{progress.stopping_value:.6g}"
    measure = "the validation loss" if progress.stopping_by == "validation" else progress.stopping_by
    return (
        f"stopped early after step {progress.step:,}: {measure} ({best}) has not improved{delta} for "
        f"{counted(progress.stale_measurements, 'measurement')}; raise evaluation.early_stopping_patience to continue"
    )
