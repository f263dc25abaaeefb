"""Texts on a terminal, a pipe or in a file: interactive generation, filled masks, results as JSON lines.

    > Once upon a time
    Once upon a time there was ...
    [64 tokens, length]
    > The cat sat on the [MASK].
    The cat sat on the mat.
      mat 0.312   floor 0.120   table 0.066

If Python has readline, the arrow keys edit the line and recall earlier ones. Ctrl-C stops the current text; at the
prompt, it ends the conversation, as Ctrl-D does. On a terminal, control characters of generated text are escaped; pipes
get the text unchanged.
"""

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from hornbook.cli.table import has_styles
from hornbook.errors import UserError
from hornbook.generate import TextWriter, Timing
from hornbook.generate.fill_mask import Filled, GapFiller, Gapped
from hornbook.parallel.launched import signals_to
from hornbook.storage import Appender
from hornbook.wording import counted, one_line, spelled, visible

_ASK = "> "
_NUDGE_SECONDS = 0.05


class Screen:
    """Standard output for text that is generated in pieces."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        self._bold, self._plain = ("\x1b[1m", "\x1b[0m") if has_styles(sys.stdout) else ("", "")
        self._held = ""

    def write(self, text: str) -> None:
        """Write a piece; a trailing carriage return is held back until the next piece, for CRLF."""
        text = self._held + text
        end = len(text) - text.endswith("\r")
        self._held = text[end:]
        self._put(text[:end])

    def write_prompt(self, text: str) -> None:
        """Write a prompt, in bold if the terminal supports it."""
        self._put(text, self._bold, self._plain)

    def end_line(self) -> None:
        """Write held-back text and a line end."""
        held, self._held = self._held, ""
        self._put(held, after="\n")

    def _put(self, text: str, before: str = "", after: str = "") -> None:
        print(f"{before}{visible(text) if self.is_terminal else text}{after}", end="", flush=True)


class Record(Protocol):
    """A result that can be written as JSON."""

    def as_json(self) -> dict[str, Any]:
        """Return its fields."""


class Output:
    """The output of finished results as JSON lines, to standard output, a file or both.

    Args:
        as_json: whether to print each as a line of JSON.
        file: also write them to this file, which is replaced.
        keeps: whether to collect them in ``records``.

    Attributes:
        records: all texts so far.
    """

    def __init__(self, *, as_json: bool, file: Path | None, keeps: bool = True) -> None:
        self.as_json, self.keeps, self.records = as_json, keeps, list[dict[str, Any]]()
        self._file = file
        self._appender: Appender | None = None

    def add(self, text: Record) -> None:
        """Write a result; raise StorageError if the disk is full."""
        record = text.as_json()
        if self.keeps:
            self.records.append(record)
        line = json.dumps(record)
        if self.as_json:
            print(line, flush=True)
        if self._appender is not None:
            self._appender.append(line)

    def __enter__(self) -> Self:
        if self._file is not None:
            self._appender = Appender(self._file, truncate=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._appender is not None:
            self._appender.sync()
            self._appender.close()


def converse(writer: TextWriter, output: Output, *, num_samples: int = 1) -> None:
    """Read and continue prompts until the input ends.

    Each text uses the next sample number, so that repeating a prompt yields another text, but the same sequence of
    lines yields the same texts.
    """
    screen, samples = Screen(), count()

    def answer(line: str) -> None:
        for sample in islice(samples, num_samples):
            _continue(line, sample, writer, output, screen)

    answer_lines(answer, screen)


def answer_lines(answer: Callable[[str], None], screen: Screen) -> None:
    """Call ``answer`` with each line until Ctrl-C or Ctrl-D; continue after a UserError."""
    with suppress(ImportError):  # optional: line editing
        importlib.import_module("readline")
    with suppress(KeyboardInterrupt):
        while (line := _ask(screen)) is not None:
            try:
                answer(line)
            except UserError as error:
                print(spelled(str(error)), file=sys.stderr)
        return
    screen.end_line()


def _ask(screen: Screen) -> str | None:
    """Return the next valid line, or None at the end of the input."""
    while True:
        try:
            with _interruptible():
                if screen.is_terminal:
                    return input(_ASK)
                print(_ASK, end="", file=sys.stderr, flush=True)
                return input()
        except EOFError:
            screen.end_line()
            return None
        except UnicodeDecodeError:
            print("the input is not UTF-8; enter it again", file=sys.stderr)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let signals end the wait for a line, even those that arrive just before it starts or in another thread.

    Python only marks a signal as received and handles it when the main thread returns to Python. A system call of that
    thread is interrupted by a signal, but one that starts after it waits until the next key. So after a signal, another
    thread keeps interrupting the main one with SIGURG, which otherwise means nothing, until the ``with`` block ends.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_kill"):
        yield
        return
    ended, main = threading.Event(), threading.get_ident()
    received, wakeup = os.pipe()
    os.set_blocking(wakeup, False)  # as `set_wakeup_fd` requires

    def nudge() -> None:
        os.read(received, 1)  # the number of a signal, or nothing when the block ends
        while not ended.wait(_NUDGE_SECONDS):
            signal.pthread_kill(main, signal.SIGURG)

    thread = threading.Thread(target=nudge, daemon=True)
    with signals_to(lambda number, frame: None, [signal.SIGURG]):
        previous = signal.set_wakeup_fd(wakeup)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous)
            ended.set()
            os.close(wakeup)
            thread.join()
            os.close(received)


def _continue(line: str, sample: int, writer: TextWriter, output: Output, screen: Screen) -> None:
    request = writer.request(line, sample=sample)
    screen.write_prompt(line)
    (text,) = writer.write([request], on_text=lambda _, piece: screen.write(piece), interruptible=True)
    screen.end_line()
    cut = f", without the prompt's first {request.num_cut}" if request.num_cut else ""
    output.add(text)
    print(f"[{counted(text.tokens, 'token')}{cut}, {text.finish_reason.replace('_', ' ')}]", file=sys.stderr)


def fill_all(filler: GapFiller, requests: Sequence[Gapped], output: Output, *, batch_size: int) -> None:
    """Fill the masks of texts in batches of ``batch_size``, and print each result."""
    screen = Screen()
    for start in range(0, len(requests), batch_size):
        for filled in filler.fill(requests[start : start + batch_size]):
            _show(filled, output, screen)


def fill_typed(filler: GapFiller, output: Output) -> None:
    """Read texts from the terminal and fill their masks until the input ends."""
    screen = Screen()
    print("enter a text with a mask; Ctrl-D exits", file=sys.stderr)
    answer_lines(lambda line: _show(filler.fill([filler.request(line)])[0], output, screen), screen)


def _show(filled: Filled, output: Output, screen: Screen) -> None:
    output.add(filled)
    if not output.as_json:
        screen.write_prompt(filled.text)
        screen.write("".join(f"\n{line}" for line in _lines(filled)))
        screen.end_line()


def _lines(filled: Filled) -> Iterator[str]:
    for gap in filled.gaps:
        named = ((guess.token.strip() or json.dumps(guess.token), guess.probability) for guess in gap)
        yield "  " + "   ".join(f"{one_line(token)} {probability:#.3g}" for token, probability in named)


def timing_line(timing: Timing) -> str:
    """Return the timing as text: texts that ended by themselves, time to the first and per further token, tokens/s."""
    summary = timing.summary()
    stopped = f" ({timing.stopped:,} ended by the stop token)" if timing.stopped else ""
    parts = [f"{counted(timing.texts, 'text')}{stopped}, {counted(timing.tokens, 'token')} in {timing.seconds:.2f} s"]
    if summary["first_token_seconds"] is not None:
        parts.append(f"first token after {1e3 * summary['first_token_seconds']:,.2f} ms")
    if summary["seconds_per_token"] is not None:
        parts.append(f"then {1e3 * summary['seconds_per_token']:,.2f} ms per token")
    if summary["tokens_per_second"] is not None:
        parts.append(f"{summary['tokens_per_second']:,.0f} tokens/s")
    return ", ".join(parts)
