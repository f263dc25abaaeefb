"""Measure what a run of `hornbook train auto` has reached, and compare it with what was predicted.

    on the way            64 windows, always the same, so that losses can be compared     {"kind": "validation", ...}
    after the last step   as many as 2 % of the run's time score                          {"kind": "final", ...}
        -> reached 1.022 bits per byte; predicted: 80 % between 1.07 and 1.29

Of a large text, 64 windows tell the loss to a tenth, and the prediction is exact to some percent. They do not become
more, since early stopping and the best checkpoint compare losses of the same windows. The price: one more kind of rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hornbook.engine.validation import SCORING, validate
from hornbook.run.training_run import TrainingRun
from hornbook.track import metrics, units
from hornbook.track.units import number

SHARE: Final = 0.02
"""Of the time of the run's steps, for the last measurement."""
_LEAST = 64  # windows


def final_windows(run: TrainingRun, num_steps: int) -> int:
    """Return how many windows are scored after ``num_steps`` steps; 0 without any, or if auto did not choose it."""
    if run.samples.held_out is None or not run.world.from_first(run.folder.is_chosen(run.recipe.name)):
        return 0
    most = int(SHARE / SCORING * num_steps * run.recipe.training.global_batch_size)
    return min(run.samples.held_out.num_items, max(_LEAST, most))


def measure_final(run: TrainingRun) -> None:
    """Score and log the windows of `final_windows`, unless that was done, or the validation scored as many."""
    step, every = run.state.progress.step, run.recipe.evaluation.max_windows
    windows = final_windows(run, step)
    if not windows or every is None or every >= windows:
        return
    rows = metrics.read(run.folder.metrics) if run.world.is_first else []
    if run.world.from_first(any(row.get("kind") == "final" and row["step"] == step for row in rows)):
        return
    assert run.samples.held_out is not None
    found = validate(
        run.state.model,
        run.samples.held_out,
        run.step_config.objective,
        forward=run.step_config.forward,
        ranks=run.world.data,
        micro_batch_size=run.recipe.training.micro_batch_size,
        max_windows=windows,
        num_bytes=run.samples.held_out_bytes,
    )
    if run.metrics is not None:
        measured: dict[str, float | None] = {"loss": found.loss, "tokens": found.tokens, "share": found.share}
        measured |= {"standard_error": found.standard_error, "bits_per_byte": found.bits_per_byte}
        run.metrics.append({"kind": "final", "step": step, **measured})


def reached(run: TrainingRun, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return what a run has reached and what was predicted; None if auto did not choose it or nothing was measured.

    Args:
        run: at its end, on the first rank.
        rows: of its log.

    Returns:
        ``unit``, ``value``, ``standard_error``, ``share``, and the prediction's bounds ``low`` and ``high``, or None.
    """
    measured = [row for row in rows if row.get("kind") in ("validation", "final") and number(row, "loss") is not None]
    if not measured or measured[-1]["step"] != run.state.progress.step or not run.folder.is_chosen(run.recipe.name):
        return None
    row, (bits, low, high) = measured[-1], run.folder.prediction
    loss, exact, error = (number(row, key) for key in ("loss", "bits_per_byte", "standard_error"))
    assert loss is not None
    return {
        "unit": "bits per byte" if bits else "nats per token",
        "value": exact if bits and exact is not None else loss * (bits or 1.0),
        "standard_error": None if error is None else error * (bits or 1.0),
        "share": number(row, "share"),
        "low": low,
        "high": high,
    }


def told(found: Mapping[str, Any]) -> str:
    """Return the result of `reached` in words."""
    error, share = found["standard_error"], found["share"]
    line = f"reached {found['value']:.3f} {found['unit']}"
    line += "" if error is None else f" ± {units.significant(error, 2)}"
    line += "" if share is None or share == 1.0 else f" on {share:.0%} of the held-out text"
    if found["low"] is None:
        return line
    return f"{line}; predicted: 80 % between {found['low']:.2f} and {found['high']:.2f}"
