"""A conversation with a model: a prompt is typed, its continuation appears as it is written.

    > Once upon a time
    Once upon a time there was ...
    [64 tokens, length]
    >

The arrow keys edit the line and bring earlier ones back, where Python has readline. Ctrl-C ends the text that is being
written; at the prompt it ends the conversation, as Ctrl-D does.
"""

import importlib
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from hornbook.cli.texts import Output, Screen
from hornbook.errors import UserError
from hornbook.generate import OnText, TextWriter

_ASK = "> "


def converse(writer: TextWriter, output: Output, *, num_samples: int = 1) -> None:
    """Ask for prompts and continue them until there are no more.

    Each text is another sample of its prompt, so that a prompt that is typed again brings another text; the same lines
    bring the same texts.
    """
    with suppress(ImportError):  # a Python without it has no line editing, and that is all
        importlib.import_module("readline")
    screen, num_texts = Screen(), 0
    with suppress(KeyboardInterrupt):
        while (line := _ask(screen)) is not None:
            for sample in range(num_texts, num_texts + num_samples):
                _answer(line, sample, writer, output, screen)
            num_texts += num_samples
        return
    screen.end_line()


def _ask(screen: Screen) -> str | None:
    """Return the next line that can be read, None at the end."""
    while True:
        try:
            if screen.is_terminal:
                return input(_ASK)
            print(_ASK, end="", file=sys.stderr, flush=True)
            return input()
        except EOFError:
            screen.end_line()
            return None
        except UnicodeDecodeError:
            print("this is not UTF-8; type it again", file=sys.stderr)


def _answer(line: str, sample: int, writer: TextWriter, output: Output, screen: Screen) -> None:
    try:
        request = writer.request(line, sample=sample)
    except UserError as error:
        print(error, file=sys.stderr)
        return
    screen.write_prompt(line)
    with _heeding_ctrl_c(lambda _, piece: screen.write(piece)) as on_text:
        (text,) = writer.write([request], on_text=on_text, interruptible=True)
    screen.end_line()
    cut = f", the prompt's first {request.num_cut} left out" if request.num_cut else ""
    output.add(text)
    print(f"[{text.tokens} tokens{cut}, {text.finish_reason.replace('_', ' ')}]", file=sys.stderr)


@contextmanager
def _heeding_ctrl_c(on_text: OnText) -> Iterator[OnText]:
    """Give an ``on_text`` that ends the text after Ctrl-C, between two tokens.

    Raised where the signal hits, KeyboardInterrupt can be swallowed by a callback inside a library. A second Ctrl-C is
    raised there all the same, for a text that does not grow.
    """
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def heed(row: int, piece: str) -> None:
        on_text(row, piece)
        if pressed:
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield heed
    finally:
        signal.signal(signal.SIGINT, previous)
