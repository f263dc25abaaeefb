"""Print lines, tables and progress.

    recipe      layers
    gpt2-small      12  GPT-2 small (Radford et al. 2019,
                        there called 117M)

Files and pipes get one line per row, so that they can be searched by line. Other columns are never wrapped or
truncated: if they leave too little space for the last one, it is on lines of its own.

    1.2 GiB of 8.0 GiB read, 310,224 documents, 1,050,211 tokens/s, 0:25:40 left
    ━━━━━━━━━╸━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━

Progress is a live bar on a terminal, otherwise an occasional line. The number of tokens is shown only if the size of
the input is unknown, to keep lines within 80 columns.
"""

import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from typing import TextIO

_GAP = "  "
_LEAST_ROOM = 24
_INDENT = 4
_WIDEST_CELL = 24
_BEFORE_TEXT = re.compile(r"\s*(?:\S+\s{2,})*")
_OLDER = re.compile(r"(?<!\S)\d[\d.]* @[\d,]+[*~]?(?!\S)")
"""A number that was not measured at the last step; see `units.at_step`."""
_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_BEFORE_FORECAST = 2.0
_BAR_WIDTH = 60
Show = Callable[..., None]
"""``show(done, tokens, read=0, total=None)``: ``done`` is a text, the others are as in `Point`."""


def say(*lines: str, error: bool = False) -> None:
    """Print lines, also of the library: arguments are spelled as options, and what controls a terminal is escaped.

    A terminal gets lines that break between words.

    Args:
        lines: of text.
        error: print to standard error.
    """
    from hornbook.wording import one_line, spelled

    stream = sys.stderr if error else sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else None
    for line in lines:
        text = one_line(spelled(line))
        print(text if width is None else wrap_line(text, width), file=stream, flush=error)


def print_columns(rows: Sequence[Sequence[str]], *, right: Collection[int] = (), indent: str = "") -> None:
    """Print rows of equal length as a table; on a terminal, numbers that are not of the last step are dim.

    Args:
        rows: of texts; control characters are escaped.
        right: indices of right-aligned columns.
        indent: before each line.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in column_lines(rows, right=right, indent=indent, width=width):
        print(_dimmed(line))


def column_lines(
    rows: Sequence[Sequence[str]], *, right: Collection[int] = (), indent: str = "", width: int | None = None
) -> Iterator[str]:
    """Yield the lines of a table, wrapped to ``width`` if it is given; other arguments as for `print_columns`."""
    from rich.cells import cell_len

    from hornbook.wording import one_line

    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    last = len(widths) - 1
    for row in cells:
        padded = []
        for number, (cell, wide) in enumerate(zip(row, widths, strict=True)):
            space = " " * (wide - cell_len(cell))
            padded.append(space + cell if number in right else cell if number == last else cell + space)
        before = indent + "".join(f"{cell}{_GAP}" for cell in padded[:-1])
        yield from _hanging(before, padded[-1], None if last in right else width, cell_len(before))


def print_side_by_side(rows: Sequence[Sequence[str]], width: int | None, *, right: bool = False) -> None:
    """Print a comparison with a column per item, split into several tables if the terminal is too narrow.

    Args:
        rows: a name and a cell for each item; the first row has the items' names.
        width: of the terminal; None for one line per row.
        right: whether to right-align short cells; long ones are wrapped and left-aligned.
    """
    for block in _side_by_side(rows, width):
        columns = range(1, len(block[0])) if right else ()
        for line in column_lines(block, right=columns):
            print(_dimmed(line))


def has_styles(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that shows styles, and its user wants them."""
    return stream.isatty() and os.environ.get("TERM") not in (None, "dumb") and "NO_COLOR" not in os.environ


def _dimmed(line: str) -> str:
    return _OLDER.sub("\x1b[2m\\g<0>\x1b[22m", line) if has_styles(sys.stdout) else line


def _side_by_side(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[Sequence[Sequence[str]]]:
    """Yield tables that fit the width: the names, and the cells of as many items as possible."""
    from hornbook.wording import one_line

    cells = [[one_line(cell) for cell in row] for row in rows]
    if width is None:
        yield cells
        return
    room = width - max(len(row[0]) for row in cells)
    widths = [min(_WIDEST_CELL, max(map(len, column))) for column in list(zip(*cells, strict=True))[1:]]
    start = 0
    while start < len(widths):
        end, block = start + 1, list[Sequence[str]]()
        while end < len(widths) and sum(widths[start : end + 1]) + len(_GAP) * (end + 1 - start) <= room:
            end += 1
        for name, *texts in cells:
            here = zip(texts[start:end], widths[start:end], strict=True)
            wrapped = (textwrap.wrap(cell, max(wide, 1)) for cell, wide in here)
            block += zip_longest([name], *wrapped, fillvalue="")
        yield block
        start = end


def wrap_line(line: str, width: int) -> str:
    """Wrap a line with a hanging indent: that of the line or, for a row of a table, the start of its last cell."""
    before = _BEFORE_TEXT.match(line)
    assert before is not None, "the pattern takes nothing, too"
    return "\n".join(_hanging(before[0], line[before.end() :], width, before.end()))


def _hanging(before: str, text: str, width: int | None, indent: int) -> Iterator[str]:
    room = None if width is None else width - indent
    if width is None or room is None or len(text) <= room or not text:
        yield f"{before}{text}".rstrip()
        return
    if room < _LEAST_ROOM:
        yield before.rstrip()
        before, indent = " " * _INDENT, _INDENT
        room = max(width - indent, _LEAST_ROOM)
    first, *others = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    yield f"{before}{first}".rstrip()
    yield from (f"{' ' * indent}{other}" for other in others)


@dataclass(frozen=True, kw_only=True)
class Point:
    """The progress of a command at a time.

    Attributes:
        seconds: of a monotonic clock.
        tokens: number of tokens so far.
        read: bytes read so far; 0 if not counted.
        total: bytes of the whole input; None if unknown.
    """

    seconds: float
    tokens: int
    read: int = 0
    total: int | None = None


def progress_line(done: str, start: Point, now: Point) -> str:
    """Return a line with ``done``, the speed since ``start`` and, if it can be estimated, the remaining time."""
    from hornbook.storage.system import format_bytes

    seconds = max(now.seconds - start.seconds, 1e-3)
    speed = f"{(now.tokens - start.tokens) / seconds:,.0f} tokens/s"
    if now.total is None:
        read = [f"{format_bytes(now.read)} read"] if now.read else []
        return ", ".join([*read, done, f"{now.tokens:,} tokens", speed])
    parts = [f"{format_bytes(now.read)} of {format_bytes(now.total)} read", done, speed]
    if seconds >= _SECONDS_BEFORE_FORECAST and now.read > start.read:
        left = (now.total - now.read) * seconds / (now.read - start.read)
        parts.append(f"{timedelta(seconds=round(left))} left")
    return ", ".join(parts)


@contextmanager
def token_progress() -> Iterator[Show]:
    """Yield a function that shows the progress; its first call sets the start, from which the speed is computed."""
    from rich.console import Console, Group
    from rich.progress_bar import ProgressBar

    console = Console(stderr=True)
    last = time.monotonic()
    start: Point | None = None
    with console.status("reading") as status:

        def show(done: str, tokens: int, read: int = 0, total: int | None = None) -> None:
            nonlocal last, start
            now = Point(seconds=time.monotonic(), tokens=tokens, read=read, total=total)
            start = start or now
            if console.is_terminal:
                bar = [ProgressBar(total=total, completed=read, width=_BAR_WIDTH)] if total else []
                status.update(Group(progress_line(done, start, now), *bar))
            elif now.seconds - last >= _SECONDS_BETWEEN_LINES:
                console.print(progress_line(done, start, now), highlight=False, soft_wrap=True)
                last = now.seconds

        yield show
