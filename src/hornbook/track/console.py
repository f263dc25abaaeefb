"""What a training run says while it runs; the only room of the package, besides the commands, that prints.

Everything goes to standard error, so that standard output is the command's own. On a terminal, a live display moves
below what is said (`hornbook.track.live`)::

    hornbook  demo
      parameters  5,312,768
      device      cpu, bf16
    step 500  validation loss 3.0412  bits per byte 2.104
    saved runs/demo/checkpoints/step-00000500
    step 720/2,000  loss 2.8113  lr 5.12e-04  grad 0.831  25.1k tokens/s  3 min 12 s left
    728/2,000 steps  micro-batch 3/8  ━━━━━━━━━━━━━━━━━━━━━━━────────────────────────────────────────  3 min 10 s left
    loss 2.7921  lr 5.11e-04  grad 0.902  25.2k tokens/s  MFU 41.3%  2.1 GiB memory

Elsewhere (a file, a pipe, a dumb terminal) there are only the lines. No thread redraws the display: it moves when a
micro-batch begins, at most ten times a second. The price is that it stands still within a micro-batch and during
measurements; the gain is nothing that runs beside the training, forks with it or holds a lock when a signal comes.

Text from outside (a model's sample, a path) is shown, never obeyed: control characters become visible escapes and no
markup is read. A terminal that goes away makes the console silent; it does not end the run.
"""

import io
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TextIO, cast

import rich.console
from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from hornbook.track import metrics, units
from hornbook.track.live import accuracies_of, live_lines, numbers_of, seconds_left
from hornbook.wording import one_line, visible

_SECONDS_BETWEEN_DRAWINGS = 0.1


class Console:
    """The voice of a run.

    Args:
        quiet: only warnings are said.
        stream: where to write; standard error if not given.

    Attributes:
        is_live: whether there is a terminal with a live display.
    """

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._target = _SteadyStream(stream or sys.stderr)
        self._quiet = quiet
        self.is_live = not quiet and self._target.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._rich = rich.console.Console(file=cast(TextIO, self._target), highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        self._rows, self._next_drawing = 0, 0.0

    def start(self, name: str, facts: Mapping[str, str]) -> None:
        """The header: what is trained, and the facts that a reader wants before the first step."""
        self._line(Text.assemble(("hornbook", "bold"), "  ", (one_line(name), "bold cyan")))
        self._pairs(facts)

    def train(self, row: Mapping[str, Any], total_steps: int) -> None:
        """A logged training step; with the MFU where no live display shows it."""
        left = f"{units.duration(seconds_left(row, total_steps))} left"
        step = f"{_step(row)}/{units.count(total_steps)}"
        self._line(Text("  ".join([step, *numbers_of(row, mfu_too=not self.is_live), left])))

    def is_due(self) -> bool:
        """Tell whether the live display may be drawn again."""
        return self.is_live and time.perf_counter() >= self._next_drawing

    def live(self, row: Mapping[str, Any], total_steps: int, *, micro_batch: tuple[int, int]) -> None:
        """Draw the live display, if there is a terminal.

        Args:
            row: of the last finished step, with ``memory`` in bytes; before the first step it lacks most numbers.
            total_steps: length of the run.
            micro_batch: which one, from 1, is computed now, and how many a step has.
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
        """A line in the place of the live display; for signal handlers, since it uses neither locks nor buffers."""
        if self._quiet:
            return
        up = "\r\x1b[2K" + "\x1b[1A\x1b[2K" * (self._rows - 1) if self._rows else "\n"
        with suppress(OSError, ValueError):  # the terminal may be gone
            os.write(self._target.fileno(), f"{up}{text}{os.linesep * max(self._rows, 1)}".encode())

    def validation(self, row: Mapping[str, Any]) -> None:
        """A validation loss."""
        parts = [_step(row), f"validation loss {units.loss(units.number(row, 'loss'))}"]
        parts += [f"{name} {units.loss(units.number(row, key))}" for name, key in metrics.store_losses(row).items()]
        bits = units.number(row, "bits_per_byte")
        if bits is not None:
            parts.append(f"bits per byte {units.bits(bits)}")
        parts += accuracies_of(row)
        self._line(Text(one_line("  ".join(parts)), style="green"))

    def task(self, row: Mapping[str, Any]) -> None:
        """The first number of an evaluation task."""
        value = units.number(row, "value")
        shown = units.MISSING if value is None else units.significant(value, 4)
        self._line(Text(one_line(f"{_step(row)}  {row['task']}  {row['metric']} {shown}"), style="green"))

    def checkpoint(self, path: object) -> None:
        """A checkpoint was committed."""
        self._line(Text(f"saved {one_line(str(path))}", style="dim"))

    def sample(self, step: int, text: str) -> None:
        """A text that the model wrote after a step; whatever it holds, it cannot leave its indented block."""
        if self._quiet:
            return
        self._line(Text(f"step {units.count(step)}  generated text", style="green"))
        if self.is_live:
            self._rich.print(Padding(Text(visible(text), style="italic"), (0, 2, 0, 4)))
        else:
            for line in visible(text).split("\n"):
                self._line(Text(f"    {line}"))

    def note(self, text: str) -> None:
        """Something worth knowing, on one line."""
        self._line(Text(one_line(text)))

    def warn(self, text: str) -> None:
        """Something that the user may want to mend, on one line; said even when quiet."""
        self._rich.print(Text.assemble(("warning: ", "bold yellow"), one_line(text)), soft_wrap=True)

    def finish(self, summary: Mapping[str, object]) -> None:
        """Ends the live display and says how the run ended."""
        self.close()
        self._pairs({key: str(value) for key, value in summary.items()})

    def close(self) -> None:
        """Ends the live display, if there is one; what was said stays on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live, self._rows = None, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _line(self, text: Text) -> None:
        if not self._quiet:
            self._rich.print(text, soft_wrap=True)

    def _pairs(self, pairs: Mapping[str, str]) -> None:
        """Names in one column, values in the other."""
        width = max((len(one_line(key)) for key in pairs), default=0)
        for key, value in pairs.items():
            self._line(Text.assemble("  ", (one_line(key).ljust(width), "dim"), "  ", one_line(value)))


def _step(row: Mapping[str, Any]) -> str:
    return f"step {units.count(units.number(row, 'step'))}"


class _SteadyStream(io.TextIOBase):
    """A text stream that takes every text: what its encoding lacks is escaped, and a reader that left is no error."""

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
