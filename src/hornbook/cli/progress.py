"""How far a long command is: a live line on a terminal, else a line now and then, on standard error.

1.2 GiB of 8.0 GiB read, 310,224 documents, 290,113,000 tokens, 1,050,211 tokens/s, 0:25:40 left
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from hornbook.storage.system import format_bytes

_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_BEFORE_FORECAST = 2.0


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
    parts = [done, f"{now.tokens:,} tokens", f"{(now.tokens - start.tokens) / seconds:,.0f} tokens/s"]
    if now.total is not None:
        parts.insert(0, f"{format_bytes(now.read)} of {format_bytes(now.total)} read")
        if seconds >= _SECONDS_BEFORE_FORECAST and now.read > start.read:
            left = (now.total - now.read) * seconds / (now.read - start.read)
            parts.append(f"{timedelta(seconds=round(left))} left")
    elif now.read:
        parts.insert(0, f"{format_bytes(now.read)} read")
    return ", ".join(parts)


@contextmanager
def token_progress() -> Iterator[Show]:
    """Give a function that shows what was done so far; what its first call tells was done before."""
    from rich.console import Console

    console = Console(stderr=True)
    last = time.monotonic()
    start: Point | None = None
    with console.status("reading") as status:

        def show(done: str, tokens: int, read: int = 0, total: int | None = None) -> None:
            nonlocal last, start
            now = Point(seconds=time.monotonic(), tokens=tokens, read=read, total=total)
            start = start or now
            if console.is_terminal:
                status.update(progress_line(done, start, now))
            elif now.seconds - last >= _SECONDS_BETWEEN_LINES:
                console.print(progress_line(done, start, now), highlight=False, soft_wrap=True)
                last = now.seconds

        yield show
