"""Early stopping: end a run when the metric that selects its best checkpoint stops improving.

    checkpoint.best_by "validation", patience 2, min delta 0.1

    step          10     20     30     40
    loss          3.0    2.5    2.45   2.6
    stale         0      0      1      2 -> the run ends after step 40; its best checkpoint is kept

After Prechelt, "Early stopping - but when?" (1998), with the patience of Keras and transformers. The counters are part
of the run's progress, so a resumed run stops at the same step as an uninterrupted one.
"""

import math

from hornbook.config import EvaluationConfig
from hornbook.engine.state import Progress
from hornbook.wording import counted


def note_measurement(progress: Progress, config: EvaluationConfig, measure: str, value: float, *, higher: bool) -> None:
    """Update the counters in ``progress`` with a measurement.

    Args:
        progress: the run's progress, modified in place.
        config: defines which change counts as an improvement.
        measure: name of the metric; values of different metrics are not compared.
        value: the current step's value; a non-finite one is not an improvement.
        higher: whether higher values are better.
    """
    before = progress.stopping_value if progress.stopping_by == measure else None
    gain = math.inf if before is None else (value - before if higher else before - value)
    improved = math.isfinite(value) and gain > config.early_stopping_min_delta
    progress.stale_measurements = 0 if improved or progress.stopping_by != measure else progress.stale_measurements + 1
    progress.stopping_by, progress.stopping_value = measure, value if improved else before


def why_stopped(progress: Progress, config: EvaluationConfig) -> str | None:
    """Return a message that says why the run ended before its last step; None if it did not."""
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
