"""Output of generated texts to a terminal, a pipe, JSON lines or a file, and their timing in one line.

On a terminal, control characters of generated text are escaped; pipes get the text unchanged.
"""

import json
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from hornbook.generate import Timing
from hornbook.storage import Appender
from hornbook.wording import counted, visible


class Screen:
    """Standard output for text that is generated in pieces."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        has_styles = self.is_terminal and os.environ.get("TERM") not in (None, "dumb") and "NO_COLOR" not in os.environ
        self._bold, self._plain = ("\x1b[1m", "\x1b[0m") if has_styles else ("", "")
        self._held = ""

    def write(self, text: str) -> None:
        """Write a piece; a trailing carriage return is held back until the next piece, for CRLF."""
        text = self._held + text
        end = len(text) - text.endswith("\r")
        self._held = text[end:]
        self._put(self._safe(text[:end]))

    def write_prompt(self, text: str) -> None:
        """Write a prompt, in bold if the terminal supports it."""
        self._put(f"{self._bold}{self._safe(text)}{self._plain}")

    def end_line(self) -> None:
        """Write held-back text and a line end."""
        held, self._held = self._held, ""
        self._put(f"{self._safe(held)}\n")

    def _safe(self, text: str) -> str:
        return visible(text) if self.is_terminal else text

    def _put(self, text: str) -> None:
        print(text, end="", flush=True)


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


def timing_line(timing: Timing) -> str:
    """Return the timing as text: time to the first token, time per further token, tokens per second."""
    summary = timing.summary()
    parts = [f"{counted(timing.texts, 'text')}, {counted(timing.tokens, 'token')} in {timing.seconds:.2f} s"]
    if summary["first_token_seconds"] is not None:
        parts.append(f"first token after {_milliseconds(summary['first_token_seconds'])}")
    if summary["seconds_per_token"] is not None:
        parts.append(f"then {_milliseconds(summary['seconds_per_token'])} per token")
    if summary["tokens_per_second"] is not None:
        parts.append(f"{summary['tokens_per_second']:,.0f} tokens/s")
    return ", ".join(parts)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f} ms"
