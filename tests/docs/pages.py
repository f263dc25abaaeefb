"""The documentation as something that can be run: blocks and commands out of Markdown pages, a shell, some texts."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE_NAME = re.compile(r"`(?P<name>[\w.]+)`:\n\n$")
_WORDS = ("the", "a", "cat", "dog", "runs", "sees", "old", "red", "small", "river", "town", "and", "near", "slowly")


class Block(NamedTuple):
    """A fenced block of a page: its language, its text, and the file name that stands before it, if one does."""

    language: str
    body: str
    file: str | None


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in _FENCE.finditer(text):
        named = _FILE_NAME.search(text[: match.start()])
        blocks.append(Block(match["language"], match["body"], named["name"] if named else None))
    return blocks


def prose_of(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def commands_of(page: Path, *languages: str) -> list[str]:
    """The lines of a page's ``sh`` blocks, which anybody can run; those of ``shell`` blocks name files one has not."""
    chosen = languages or ("sh",)
    return [line for block in blocks_of(page) if block.language in chosen for line in block.body.splitlines()]


class Shell:
    """Runs commands in one folder, on one core, with this interpreter's Python and hornbook first on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = os.environ | {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, command: str) -> str:
        """Run a command that has to succeed, and return what it wrote on standard output."""
        options = {"cwd": self.folder, "env": self._environment, "timeout": 600}
        words = ["bash", "-euo", "pipefail", "-c", command]
        with one_core():
            finished = subprocess.run(words, capture_output=True, text=True, **options)
        assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
        return finished.stdout


@contextmanager
def one_core() -> Iterator[None]:
    """Let processes that are started inside have one core: two threads on a machine that others use wait for both.

    Each worker of pytest-xdist has its own, as far as there are enough.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    number = int(worker) if worker else random.randrange(len(cores))
    os.sched_setaffinity(0, {sorted(cores)[number % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def write_texts(folder: Path, num_texts: int = 40) -> None:
    """Write short texts of made-up sentences; each differs from the others."""
    folder.mkdir(parents=True)
    draws = random.Random(0)
    for number in range(num_texts):
        sentences = (" ".join(draws.choices(_WORDS, k=draws.randint(4, 12))).capitalize() for _ in range(25))
        (folder / f"{number:02}.txt").write_text(". ".join(sentences) + ".\n", encoding="utf-8")
