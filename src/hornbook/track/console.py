"""What a training run says while it runs; the only room of the package, besides the commands, that prints.

Everything goes to standard error, so that standard output is the command's own. On a terminal, one status line moves::

    hornbook  demo
      parameters  5,312,768
      device      cpu, bf16
    step 500  validation loss 3.0412  bits per byte 2.104
    saved runs/demo/checkpoints/step-00000500
    ━━━━━━━━━━━━━━━━╸──────────  720/2,000  loss 2.8113  25.1k tokens/s  3 min 12 s left

Elsewhere (a file, a pipe) every logged step is a plain line of its own. No thread redraws the status: it
moves when a row arrives. The price is that it stands still between rows; the gain is nothing that runs beside the
training, forks with it or holds a lock when a signal comes.

Text from outside (a model's sample, a path) is shown, never obeyed: control characters become visible escapes and no
markup is read. A terminal that goes away makes the console silent; it does not end the run.
"""

import io
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, TextIO, cast

import rich.console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from hornbook.track import metrics, units
from hornbook.wording import one_line, visible


def seconds_left(row: Mapping[str, Any], total_steps: int) -> float | None:
    """Time for the steps that remain, at the row's speed: (total - step) · (tokens / step) / tokens per second."""
    step, tokens, speed = (units.number(row, key) for key in ("step", "tokens", "tokens_per_second"))
    if not step or not tokens or not speed or speed < 0:
        return None
    return max(0.0, total_steps - step) * tokens / step / speed


class Console:
    """The voice of a run.

    Args:
        quiet: only warnings are said.
        stream: where to write; standard error if not given.
    """

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        target = _SteadyStream(stream or sys.stderr)
        self._moves = target.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._quiet = quiet
        self._rich = rich.console.Console(file=cast(TextIO, target), highlight=False, markup=False, emoji=False)
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def start(self, name: str, facts: Mapping[str, str]) -> None:
        """The header: what is trained, and the facts that a reader wants before the first step."""
        self._line(Text.assemble(("hornbook", "bold"), "  ", (one_line(name), "bold cyan")))
        self._pairs(facts)

    def train(self, row: Mapping[str, Any], total_steps: int) -> None:
        """A logged training step: moves the status on a terminal, is a line elsewhere."""
        if self._quiet:
            return
        if self._moves:
            self._status(row, total_steps)
        else:
            self._line(Text("  ".join(_train_parts(row, total_steps))))

    def validation(self, row: Mapping[str, Any]) -> None:
        """A validation loss."""
        parts = [_step(row), f"validation loss {units.loss(units.number(row, 'loss'))}"]
        parts += [f"{name} {units.loss(units.number(row, key))}" for name, key in metrics.store_losses(row).items()]
        bits = units.number(row, "bits_per_byte")
        if bits is not None:
            parts.append(f"bits per byte {units.bits(bits)}")
        parts += _accuracies(row)
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
        if self._moves:
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
        """Ends the status and says how the run ended."""
        self.close()
        self._pairs({key: str(value) for key, value in summary.items()})

    def close(self) -> None:
        """Ends the status, if one is moving; what was said stays on the screen."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

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

    def _status(self, row: Mapping[str, Any], total_steps: int) -> None:
        if self._progress is None:
            self._progress = _progress(self._rich)
            self._task = self._progress.add_task("", total=None, status="")
            self._progress.start()
        shown = "  ".join(_train_parts(row, total_steps, short=True)).removeprefix("step ")
        self._progress.update(self._task, total=total_steps, completed=units.number(row, "step") or 0, status=shown)
        self._progress.refresh()


def _train_parts(row: Mapping[str, Any], total_steps: int, *, short: bool = False) -> list[str]:
    """Step, loss, learning rate, gradient norm, speed and, where they apply, skipped steps; then the time left.

    An encoder's accuracies take the place of learning rate and gradient norm, so that its lines are no longer than a
    decoder's; a ``short`` line, for the status, has neither of these. The log and the report have all.
    """
    loss, learning_rate, norm, speed, skipped = (
        units.number(row, key)
        for key in ("loss", "learning_rate", "gradient_norm", "tokens_per_second", "skipped_steps")
    )
    accuracies = _accuracies(row)
    parts = [f"{_step(row)}/{units.count(total_steps)}", f"loss {units.loss(loss)}", *accuracies]
    if not short and not accuracies:
        shown = units.MISSING if norm is None else units.significant(norm)
        parts += [f"lr {units.rate(learning_rate)}", f"grad {shown}"]
    parts.append(f"{units.short(speed)} tokens/s")
    if skipped:
        parts.append(f"{units.count(skipped)} skipped")
    return [*parts, f"{units.duration(seconds_left(row, total_steps))} left"]


def _accuracies(row: Mapping[str, Any]) -> list[str]:
    """What an encoder's row says beside its loss: how often it is right."""
    names = {"mlm_accuracy": "mlm", "nsp_accuracy": "nsp", "accuracy": "accuracy"}
    values = ((name, units.number(row, key)) for key, name in names.items())
    return [f"{name} {value:.1%}" for name, value in values if value is not None]


def _step(row: Mapping[str, Any]) -> str:
    return f"step {units.count(units.number(row, 'step'))}"


def _progress(console: rich.console.Console) -> Progress:
    """A bar and a text, redrawn on demand alone; standard output is left alone."""
    return Progress(
        BarColumn(bar_width=None),
        TextColumn("{task.fields[status]}", markup=False),
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        expand=True,
    )


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
