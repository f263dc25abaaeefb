"""Interactive generation, and an encoder's filling of masks, typed or not.

    > Once upon a time
    Once upon a time there was ...
    [64 tokens, length]
    > The cat sat on the [MASK].
    The cat sat on the mat.
      mat 0.312   floor 0.120   table 0.066

If Python has readline, the arrow keys edit the line and recall earlier ones. Ctrl-C stops the current text; at the
prompt, it ends the conversation, as Ctrl-D does.
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

from hornbook.cli.texts import Output, Screen
from hornbook.errors import UserError
from hornbook.generate import TextWriter
from hornbook.generate.fill_mask import Filled, GapFiller, Gapped
from hornbook.parallel.launched import signals_to
from hornbook.wording import counted, one_line, spelled

_ASK = "> "
_NUDGE_SECONDS = 0.05


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
