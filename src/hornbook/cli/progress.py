"""How far a long command is: a live line on a terminal, else a line now and then, on standard error."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def token_progress() -> Iterator[Callable[[str, int], None]]:
    """Give a function that shows what was done so far, in words, with the number of tokens and their rate."""
    from rich.console import Console

    console = Console(stderr=True)
    started = last = time.monotonic()
    with console.status("reading") as status:

        def show(done: str, tokens: int) -> None:
            nonlocal last
            now = time.monotonic()
            text = f"{done}, {tokens:,} tokens, {tokens / max(now - started, 1e-3):,.0f} tokens/s"
            if console.is_terminal:
                status.update(text)
            elif now - last >= _SECONDS_BETWEEN_LINES:
                console.print(text, highlight=False)
                last = now

        yield show
