"""How far a long command is: a live line on a terminal, else a line now and then, on standard error.

1.2 GiB of 8.0 GiB read, 310,224 documents, 1,050,211 tokens/s, 0:25:40 left
━━━━━━━━━╸━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━

The bar is for terminals. The tokens are told where the bytes cannot tell how far it is; with both, a line would not fit
80 columns.
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
    """Where a command is at a time.

    Attributes:
        seconds: by a clock that never goes back.
        tokens: made so far.
        read: bytes of the input that were read, 0 where nobody counts them.
        total: bytes of the whole input, None where that is not known.
    """

    seconds: float
    tokens: int
    read: int = 0
    total: int | None = None


Show = Callable[..., None]
"""``show(done, tokens, read=0, total=None)``: ``done`` in words, the others as in `Point`."""


def progress_line(done: str, start: Point, now: Point) -> str:
    """What was done, and how fast since ``start``; with the time left, once that can be told."""
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
    """Give a function that shows what was done so far; what its first call tells was done before."""
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
