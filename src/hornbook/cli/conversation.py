"""Interactive generation: the user types prompts, and the model's continuations are shown token by token.

    > Once upon a time
    Once upon a time there was ...
    [64 tokens, length]
    >

If Python has readline, the arrow keys edit the line and recall earlier ones. Ctrl-C stops the current text; at the
prompt, it ends the conversation, as Ctrl-D does.
"""

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count, islice

from hornbook.cli.texts import Output, Screen
from hornbook.errors import UserError
from hornbook.generate import TextWriter
from hornbook.wording import counted, spelled

_ASK = "> "


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
