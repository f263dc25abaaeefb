"""The console output of a training run; besides the commands, the only module of the package that prints.

Everything goes to standard error, so that standard output belongs to the command. On a terminal, a live display follows
the lines::

    hornbook  demo
      parameters  5,312,768
      device      cpu, bf16
    step 500  validation loss 3.0412  bits per byte 2.104
    saved runs/demo/checkpoints/step-00000500
    step 720/2,000  loss 2.8113  lr 5.12e-04  grad 0.831  25.1k tokens/s  3 min 12 s left
    728/2,000 steps  micro-batch 3/8  ━━━━━━━━━━━━━━━━━━━━━━━────────────────────────────────────────  3 min 10 s left
    loss 2.7921  lr 5.11e-04  grad 0.902  25.2k tokens/s  MFU 41.3%  2.1 GiB memory

On a narrow terminal, the parts of the display wrap and the bar is left out. Without a terminal (a file, a pipe, a dumb
terminal) there are only the lines. No thread redraws the display: it is drawn when a micro-batch begins, at most ten
times per second. The price: it stands still within a micro-batch and during measurements; in return, nothing runs
beside the training, is forked with it or holds a lock when a signal arrives.

Text from outside (a model's sample, a path) is printed literally: control characters are escaped and markup is not
interpreted. If the terminal disappears, the console becomes silent; the run continues.
"""

import io
import os
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, TextIO, cast

import rich.console
from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from hornbook.track import metrics, units
from hornbook.track.run_state import seconds_left
from hornbook.wording import one_line, spelled, visible

_SECONDS_BETWEEN_DRAWINGS = 0.1
_NARROWEST, _UNBROKEN = 20, 1 << 20
_GAP = "  "
_SHORTEST_BAR = 8
_LONGEST_LINE = 100
"""Most columns with a bar: longer lines say no more, and leave remains when the window becomes narrower."""


class Console(AbstractContextManager["Console"]):
    """The console output of a run.

    Args:
        quiet: print only warnings.
        stream: output stream; None for standard error.

    Attributes:
        is_live: whether a live display is shown.
    """

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._target = _SteadyStream(stream or sys.stderr)
        self._quiet = quiet
        self.is_live = not quiet and self._target.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._rich = rich.console.Console(file=cast(TextIO, self._target), highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        self._rows, self._next_drawing = 0, 0.0

    def start(self, name: str, facts: Mapping[str, str]) -> None:
        """Print the header: the run's name and facts."""
        self._line(Text.assemble(("hornbook", "bold"), "  ", (one_line(name), "bold cyan")))
        self._pairs(facts)

    def train(self, row: Mapping[str, Any], total_steps: int) -> None:
        """Print a logged training step, with the MFU unless the live display shows it."""
        left = f"{units.duration(seconds_left(row, total_steps))} left"
        step = f"{_step(row)}/{units.count(total_steps)}"
        self._line(Text("  ".join([step, *numbers_of(row, mfu_too=not self.is_live), left])))

    def is_due(self) -> bool:
        """Return whether the live display may be redrawn."""
        return self.is_live and time.perf_counter() >= self._next_drawing

    def live(self, row: Mapping[str, Any], total_steps: int, *, micro_batch: tuple[int, int]) -> None:
        """Draw the live display on a terminal.

        Args:
            row: row of the last finished step, with ``memory`` in bytes; mostly empty before the first step.
            total_steps: length of the run in steps.
            micro_batch: number of the current micro-batch, from 1, and their number per step.
        """
        if not self.is_live:
            return
        if self._live is None:
            self._live = Live(console=self._rich, auto_refresh=False, transient=True, redirect_stdout=False)
            self._live.start()
        ascii_only = not self._target.encoding.lower().startswith("utf")
        lines = live_lines(row, total_steps, micro_batch, width=self._rich.width, ascii_only=ascii_only)
        self._live.update(Group(*lines), refresh=True)
        self._rows, self._next_drawing = len(lines), time.perf_counter() + _SECONDS_BETWEEN_DRAWINGS

    def interject(self, text: str) -> None:
        """Print a line in place of the live display; safe in signal handlers: without locks or buffers."""
        if self._quiet:
            return
        up = "\r\x1b[2K" + "\x1b[1A\x1b[2K" * (self._rows - 1) if self._rows else "\n"
        with suppress(OSError, ValueError):  # the terminal may be gone
            os.write(self._target.fileno(), f"{up}{text}{os.linesep * max(self._rows, 1)}".encode())

    def validation(self, row: Mapping[str, Any]) -> None:
        """Print a validation loss."""
        parts = [_step(row), f"validation loss {units.loss(units.number(row, 'loss'))}"]
        parts += [f"{name} {units.loss(units.number(row, key))}" for name, key in metrics.store_losses(row).items()]
        bits = units.number(row, "bits_per_byte")
        if bits is not None:
            parts.append(f"bits per byte {units.bits(bits)}")
        parts += accuracies_of(row)
        parts += [f"({scored})"] if (scored := units.scored(row)) else []
        self._line(Text(one_line("  ".join(parts)), style="green"))

    def task(self, row: Mapping[str, Any]) -> None:
        """Print the first metric of an evaluation task."""
        value = units.number(row, "value")
        shown = units.MISSING if value is None else units.significant(value, 4)
        self._line(Text(one_line(f"{_step(row)}  {row['task']}  {row['metric']} {shown}"), style="green"))

    def checkpoint(self, path: object) -> None:
        """Print that a checkpoint was saved."""
        self._line(Text(f"saved {one_line(str(path))}", style="dim"))

    def sample(self, step: int, text: str) -> None:
        """Print a text generated after a step, in an indented block that it cannot leave."""
        if self._quiet:
            return
        self._line(Text(f"step {units.count(step)}  generated text", style="green"))
        if self.is_live:
            self._rich.print(Padding(Text(visible(text), style="italic"), (0, 2, 0, 4)))
        else:
            for line in visible(text).split("\n"):
                self._line(Text(f"    {line}"))

    def note(self, text: str) -> None:
        """Print a note on one line."""
        self._line(Text(one_line(spelled(text))))

    def warn(self, text: str) -> None:
        """Print a warning on one line, also if quiet."""
        self._rich.print(
            Text.assemble(("warning: ", "bold yellow"), one_line(spelled(text))), soft_wrap=not self._rich.is_terminal
        )

    def finish(self, summary: Mapping[str, object]) -> None:
        """End the live display and print how the run ended."""
        self.close()
        self._pairs({key: str(value) for key, value in summary.items()})

    def close(self) -> None:
        """End the live display, if any; the lines remain on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live, self._rows = None, 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _line(self, text: Text) -> None:
        if not self._quiet:
            self._rich.print(text, soft_wrap=not self._rich.is_terminal)  # a terminal's lines break between words

    def _pairs(self, pairs: Mapping[str, str]) -> None:
        """Print names and values in two columns; on a terminal, a long value goes on below its beginning."""
        width = max((len(one_line(key)) for key in pairs), default=0)
        margin = " " * (width + 4)
        room = max(self._rich.width - len(margin), _NARROWEST) if self._rich.is_terminal else _UNBROKEN
        for key, value in pairs.items():
            words = textwrap.wrap(one_line(value), room, break_long_words=False, break_on_hyphens=False)
            row = Text.assemble("  ", (one_line(key).ljust(width), "dim"), "  ", f"\n{margin}".join(words))
            if not self._quiet:
                self._rich.print(row, soft_wrap=True)  # a long path stays whole, to be copied


def _step(row: Mapping[str, Any]) -> str:
    return f"step {units.count(units.number(row, 'step'))}"


class _SteadyStream(io.TextIOBase):
    """A text stream that never fails: unencodable characters are escaped, and a closed pipe is ignored."""

    def __init__(self, target: TextIO) -> None:
        self._target = target

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._target, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        try:
            return self._target.isatty()
        except ValueError:
            return False

    def fileno(self) -> int:
        return self._target.fileno()

    def write(self, text: str) -> int:
        safe = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
        try:
            self._target.write(safe)
        except (OSError, ValueError):
            return 0
        return len(text)

    def flush(self) -> None:
        try:
            self._target.flush()
        except (OSError, ValueError):
            return


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
