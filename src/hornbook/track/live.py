"""The metrics in a training row, and their layout in a terminal's live display.

At 100 columns::

    728/2,000 steps  micro-batch 3/8  ━━━━━━━━━━━━━━━━━━━━━───────────────────────────────  3 min 10 s left
    loss 2.7921  lr 5.11e-04  grad 0.902  25.2k tokens/s  MFU 41.3%  2.1 GiB memory

On a narrow terminal, the parts wrap and the bar is left out::

    12,728/20,000 steps  micro-batch 13/64  1 h 03 min left
    loss 2.7921  lr 5.11e-04  grad 0.902  25.2k tokens/s
    MFU 41.3%  2.1 GiB memory
"""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from hornbook.track import units
from hornbook.track.run_state import seconds_left

_GAP = "  "
_SHORTEST_BAR = 8
_LONGEST_LINE = 100
"""Most columns with a bar: longer lines say no more, and leave remains when the window becomes narrower."""


def numbers_of(row: Mapping[str, Any], *, more: bool = False, mfu_too: bool = False) -> list[str]:
    """Return loss, learning rate, gradient norm, speed and, if any, skipped steps, as texts.

    An encoder's accuracies replace learning rate and gradient norm, so that its lines are no longer than a decoder's.
    ``more`` adds both, the memory and the MFU; ``mfu_too`` adds only the MFU.
    """
    loss, learning_rate, norm, speed, skipped, mfu, memory = (
        units.number(row, key)
        for key in (
            "loss",
            "learning_rate",
            "gradient_norm",
            "tokens_per_second",
            "skipped_steps",
            "mfu",
            "memory",
        )
    )
    accuracies = accuracies_of(row)
    parts = [f"loss {units.loss(loss)}", *accuracies]
    if more or not accuracies:
        shown = units.MISSING if norm is None else units.significant(norm)
        parts += [f"lr {units.rate(learning_rate)}", f"grad {shown}"]
    parts.append(f"{units.short(speed)} tokens/s")
    if (more or mfu_too) and mfu is not None:
        parts.append(f"MFU {mfu:.1%}")
    if more and memory is not None:
        parts.append(f"{units.size(memory)} memory")
    if skipped:
        parts.append(f"{units.count(skipped)} skipped")
    return parts


def accuracies_of(row: Mapping[str, Any]) -> list[str]:
    """Return the accuracies in an encoder's row, as texts."""
    names = {"mlm_accuracy": "MLM acc", "nsp_accuracy": "NSP acc", "accuracy": "accuracy"}
    values = ((name, units.number(row, key)) for key, name in names.items())
    return [f"{name} {value:.1%}" for name, value in values if value is not None]


def live_lines(
    row: Mapping[str, Any], total_steps: int, micro_batch: tuple[int, int], *, width: int, ascii_only: bool = False
) -> list[Text]:
    """Return the live display, lines of at most ``width`` columns: progress with a bar, then the metrics.

    Args:
        row: row of the last finished step; without a loss, no metrics are shown.
        total_steps: length of the run in steps.
        micro_batch: number of the current micro-batch, from 1, and their number per step.
        width: width of the terminal in columns.
        ascii_only: whether to draw the bar with only ASCII characters.
    """
    step, (number, count) = units.number(row, "step") or 0.0, micro_batch
    head = [f"{units.count(step)}/{units.count(total_steps)} steps"]
    if count > 1:
        head.append(f"micro-batch {number:>{len(str(count))}}/{count}")
    left = f"{units.duration(seconds_left(row, total_steps))} left"
    room = min(width, _LONGEST_LINE) - sum(len(part) + len(_GAP) for part in (*head, left))
    lines = [Text(line, no_wrap=True, overflow="crop") for line in _packed([*head, left], width)]
    if room >= _SHORTEST_BAR:
        share = min(1.0, (step + (number - 1) / count) / max(total_steps, 1))
        full, rest = "#-" if ascii_only else "━─"
        done = int(share * room)
        bar = ((full * done, "cyan"), (rest * (room - done), "dim"))
        lines = [Text.assemble(_GAP.join(head), _GAP, *bar, _GAP, left, no_wrap=True, overflow="crop")]
    parts = numbers_of(row, more=True) if "loss" in row else []
    return lines + [Text(line, no_wrap=True, overflow="crop") for line in _packed(parts, width)]


def _packed(parts: Iterable[str], width: int) -> list[str]:
    """Join parts into lines of at most ``width`` columns; a longer part is truncated."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(_GAP) + len(part) <= width:
            lines[-1] += _GAP + part
        else:
            lines.append(part[:width])
    return lines
