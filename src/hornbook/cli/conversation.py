"""A conversation with a model: a prompt is typed, its continuation appears as it is written.

    > Once upon a time
    Once upon a time there was ...
    [64 tokens, length]
    >

The arrow keys edit the line and bring earlier ones back, where Python has readline. Ctrl-C ends the text that is being
written; at the prompt it ends the conversation, as Ctrl-D does.
"""

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count, islice

from hornbook.cli.texts import Output, Screen
from hornbook.errors import UserError
from hornbook.generate import TextWriter
from hornbook.wording import counted

_ASK = "> "


def converse(writer: TextWriter, output: Output, *, num_samples: int = 1) -> None:
    """Ask for prompts and continue them until there are no more.

    Each text is another sample of its prompt, so that a prompt that is typed again brings another text; the same lines
    bring the same texts.
    """
    screen, samples = Screen(), count()

    def answer(line: str) -> None:
        for sample in islice(samples, num_samples):
            _continue(line, sample, writer, output, screen)

    answer_lines(answer, screen)


def answer_lines(answer: Callable[[str], None], screen: Screen) -> None:
    """Hand each line that is typed to ``answer``, until Ctrl-C or Ctrl-D; a line that it refuses ends nothing."""
    with suppress(ImportError):  # a Python without it has no line editing, and that is all
        importlib.import_module("readline")
    with suppress(KeyboardInterrupt):
        while (line := _ask(screen)) is not None:
            try:
                answer(line)
            except UserError as error:
                print(error, file=sys.stderr)
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
            print("the input is not UTF-8; enter it again", file=sys.stderr)


def _continue(line: str, sample: int, writer: TextWriter, output: Output, screen: Screen) -> None:
    request = writer.request(line, sample=sample)
    screen.write_prompt(line)
    (text,) = writer.write([request], on_text=lambda _, piece: screen.write(piece), interruptible=True)
    screen.end_line()
    cut = f", without the prompt's first {request.num_cut}" if request.num_cut else ""
    output.add(text)
    print(f"[{counted(text.tokens, 'token')}{cut}, {text.finish_reason.replace('_', ' ')}]", file=sys.stderr)
