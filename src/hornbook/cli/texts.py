"""Where generated texts go: a screen, a pipe, JSON lines, a file; and what they took, in one line.

On a terminal a model's text is shown, never obeyed: control characters become visible escapes. A pipe gets it as it is.
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
    """Standard output, for text that comes in pieces."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        has_styles = self.is_terminal and os.environ.get("TERM") not in (None, "dumb") and "NO_COLOR" not in os.environ
        self._bold, self._plain = ("\x1b[1m", "\x1b[0m") if has_styles else ("", "")
        self._held = ""

    def write(self, text: str) -> None:
        """Show a piece; a carriage return waits for its line feed."""
        text = self._held + text
        end = len(text) - text.endswith("\r")
        self._held = text[end:]
        self._put(self._safe(text[:end]))

    def write_prompt(self, text: str) -> None:
        """Show a prompt, in bold where that can be."""
        self._put(f"{self._bold}{self._safe(text)}{self._plain}")

    def end_line(self) -> None:
        """Show what was held back, and a line end."""
        held, self._held = self._held, ""
        self._put(f"{self._safe(held)}\n")

    def _safe(self, text: str) -> str:
        return visible(text) if self.is_terminal else text

    def _put(self, text: str) -> None:
        print(text, end="", flush=True)


class Record(Protocol):
    """Something that was generated."""

    def as_json(self) -> dict[str, Any]:
        """Return its fields."""


class Output:
    """Finished texts, as JSON: on standard output if asked for, and in a file if one is named, begun anew.

    Args:
        as_json: print each as a line of JSON.
        file: where to save them too.
        keeps: collect them in ``records``.

    Attributes:
        records: all texts so far.
    """

    def __init__(self, *, as_json: bool, file: Path | None, keeps: bool = True) -> None:
        self.as_json, self.keeps, self.records = as_json, keeps, list[dict[str, Any]]()
        self._file = file
        self._appender: Appender | None = None

    def add(self, text: Record) -> None:
        """Take a text. Raises StorageError if it does not fit on the disk."""
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
    """Say what the texts took: how long until the first token, how long a further one, and how many a second."""
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
