"""The progress of long commands on standard error: a live bar on a terminal, otherwise occasional lines.

1.2 GiB of 8.0 GiB read, 310,224 documents, 1,050,211 tokens/s, 0:25:40 left
━━━━━━━━━╸━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━

The number of tokens is shown only if the size of the input is unknown, to keep lines within 80 columns.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from hornbook.storage.system import format_bytes

_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_BEFORE_FORECAST = 2.0
_BAR_WIDTH = 60


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


Show = Callable[..., None]
"""``show(done, tokens, read=0, total=None)``: ``done`` is a text, the others are as in `Point`."""


def progress_line(done: str, start: Point, now: Point) -> str:
    """Return a line with ``done``, the speed since ``start`` and, if it can be estimated, the remaining time."""
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
