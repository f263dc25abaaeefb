"""Commands on a pseudo-terminal, and what a person sees of what they write to it."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Callable, Sequence

_PART = re.compile(r"\x1b\[(?P<number>[0-9;?]*)(?P<code>[A-Za-z])|(?P<control>[\r\n])|(?P<text>[^\x1b\r\n]+)")


class Screen:
    """The lines that a terminal of ``columns`` columns shows, however many; it knows the codes that hornbook uses."""

    def __init__(self, columns: int) -> None:
        self.columns, self.lines, self.row, self.column = columns, [""], 0, 0

    def write(self, text: str) -> None:
        """Show ``text``: line ends, cursor up, erased lines and text that wraps; colors and the cursor's look aside."""
        at = 0
        while at < len(text):
            part = _PART.match(text, at)
            assert part, f"unknown code: {text[at : at + 20]!r}"
            at = part.end()
            if part["control"] == "\r":
                self.column = 0
            elif part["control"] == "\n":
                self._down()
            elif part["code"] == "A":
                self.row -= int(part["number"] or 1)
                assert self.row >= 0, "the cursor left the screen"
            elif part["code"] == "K":
                self.lines[self.row] = ""
            else:
                assert part["code"] in (None, "m", "h", "l"), part[0]
            for character in part["text"] or "":
                if self.column == self.columns:
                    self.column = 0
                    self._down()
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
                self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    def shown(self) -> list[str]:
        """Return the lines, without blanks at their ends and without empty ones at the bottom."""
        lines = [line.rstrip() for line in self.lines]
        while lines and not lines[-1]:
            lines.pop()
        return lines


def resize(terminal: int, columns: int) -> None:
    """Give a terminal 50 rows of ``columns`` columns."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))


def on_terminal(
    command: Sequence[str],
    *,
    columns: int = 100,
    see: Callable[[str, int, subprocess.Popen[bytes]], None] = lambda written, terminal, process: None,
    status: int = 0,
    **variables: str,
) -> str:
    """Return what a command writes to standard error, a terminal.

    Args:
        command: its words.
        columns: of the terminal.
        see: called whenever something was written, with all of it, the terminal and the process.
        status: the exit status that is expected.
        variables: of the environment.
    """
    ours, theirs = pty.openpty()
    resize(theirs, columns)
    unset = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    environment |= {"TERM": "xterm-256color", **variables}
    process = subprocess.Popen(
        command, stderr=theirs, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environment
    )
    os.close(theirs)
    found = b""
    while select.select([ours], [], [], 600)[0]:
        try:
            found += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        see(found.decode(errors="replace"), ours, process)
    os.close(ours)
    assert process.wait() == status, found
    return found.decode()


def seen(written: str, columns: int = 100) -> list[str]:
    """Return the lines on a terminal of ``columns`` columns after all of ``written``."""
    screen = Screen(columns)
    screen.write(written)
    return screen.shown()
