"""The conversation of ``hornbook generate`` on a real terminal: a pseudo-terminal, keys pressed, the screen read."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cases import mostly_slow
from written_runs import save_run

pty = pytest.importorskip("pty")
pytest.importorskip("readline")

TIMEOUT = 600
CONTROL = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f]")
INTERRUPT = b"\x03"
UP = b"\x1b[A"
END = b"\x04"


class Terminal:
    """A process that believes to sit at a terminal."""

    def __init__(self, words: list[str], program: str = "") -> None:
        self._keys, screen = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "INPUTRC": os.devnull}
        environment.pop("NO_COLOR", None)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BECOME_LEADER + program + _RUN, *words], stdin=screen, stdout=screen, stderr=screen,
            env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(screen)
        self.seen = b""

    def press(self, keys: bytes) -> None:
        os.write(self._keys, keys)

    def wait_for(self, pattern: bytes) -> bytes:
        """Return what came up to and including a pattern; the next call begins after it."""
        deadline = time.monotonic() + TIMEOUT
        while not (match := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self._keys], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {pattern!r} in {self.seen!r}"
            self.seen += self._read()
        found, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return found

    def end(self) -> tuple[int, bytes]:
        """Return the exit code and the rest of the screen."""
        code = self._process.wait(TIMEOUT)
        while piece := self._read():
            self.seen += piece
        return code, self.seen

    def _read(self) -> bytes:
        try:
            return os.read(self._keys, 1 << 16)
        except OSError:  # what Linux says when the other side is closed
            return b""

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(TIMEOUT)
        os.close(self._keys)


# Ctrl-C reaches the process by the terminal alone if the terminal is its controlling one, and if it is not ignored, as
# it is in whatever a shell starts in the background, these tests perhaps among it.
_BECOME_LEADER = """
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
"""

# Another thread takes the signal, so it never interrupts what the main thread waits for. To that thread, it is as if
# Ctrl-C always came between the last look at signals and the start of the wait.
_SIGNALS_COME_TOO_EARLY = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
"""

_RUN = """
from hornbook.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def terminal(tmp_path: Path, request: pytest.FixtureRequest):
    run = save_run(tmp_path / "run")
    length, program = request.param
    words = ["--threads", "1", "--compute", "fp32", "--output", str(tmp_path / "texts.jsonl"), *length]
    opened = Terminal(["generate", str(run), *words], program)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "terminal", [(["--output-length", "60", "--input-length", "8", "--top-k", "none"], "")], indirect=True
)
def test_lines_are_edited_and_remembered(terminal: Terminal, tmp_path: Path):
    """Backspace, arrows, UTF-8, a text that is cut; no control character of the model gets through; Ctrl-D ends."""
    terminal.wait_for(rb"Ctrl-D exits\r\n> ")
    terminal.press(b"the dog\x7f\x7f\x7fcxt\x1b[D\x7fa\r")
    terminal.wait_for(rb"\x1b\[1mthe cat\x1b\[0m")
    first = terminal.wait_for(rb"\r\n\[60 tokens, length\]\r\n> ")
    terminal.press(UP + b"\r")
    terminal.wait_for(rb"\x1b\[1mthe cat\x1b\[0m")
    second = terminal.wait_for(rb"\r\n\[60 tokens, length\]\r\n> ")
    assert first != second, "a prompt that is typed again brings another text"
    assert CONTROL.search(first + second) is None
    assert rb"\x" in first + second, "generated text control characters, and they are shown"
    terminal.press("é, the cat sat on the mat and the cat\r".encode())
    terminal.wait_for(rb"\r\n\[60 tokens, without the prompt's first \d+, length\]\r\n> ")
    terminal.press(END)
    code, rest = terminal.end()
    assert (code, rest.startswith(b"\r\n3 texts, 180 tokens in ")) == (0, True)
    saved = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(text["prompt"][:7], text["sample"]) for text in saved] == [("the cat", 0), ("the cat", 1), ("é, the ", 2)]


@pytest.mark.parametrize(
    "terminal",
    mostly_slow([((["--output-length", "1000000"], early),) for early in (_SIGNALS_COME_TOO_EARLY, "")]),
    indirect=True,
    ids=["just before the wait", "any time"],
)
def test_ctrl_c_ends_the_text_then_the_conversation(terminal: Terminal, tmp_path: Path):
    terminal.wait_for(rb"> ")
    terminal.press(b"the cat\r")
    terminal.wait_for(rb"\x1b\[1mthe cat\x1b\[0m.")
    terminal.press(INTERRUPT)
    terminal.wait_for(rb"\r\n\[\d+ tokens?, interrupted\]\r\n> ")
    terminal.press(b"the " * 100 + b"\r")
    terminal.wait_for(rb"the prompt has \d+ tokens, but the model has 64 positions; .*\r\n> ")
    terminal.press(INTERRUPT)
    code, rest = terminal.end()
    assert code == 0
    assert b"\r\n1 text, " in rest
    (saved,) = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert (saved["finish_reason"], saved["tokens"] > 0) == ("interrupted", True)
