"""Draw the pictures of the documentation: what ``hornbook demo`` prints, the report of its run, and the live board.

::

    python tools/pictures.py                            # run the demo, then write docs/pictures/
    python tools/pictures.py --demo /tmp/pictures       # draw the demo that an earlier call ran there
    python tools/pictures.py --minutes 3 --threads 1    # other options are those of hornbook demo
    python tools/pictures.py --board runs               # draw the board of the runs in a folder, and nothing else

The terminal becomes an SVG by rich, the report a PNG by headless Chromium (``apt-get install chromium``).
"""

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from itertools import groupby
from pathlib import Path
from urllib.parse import urlencode

from rich.console import Console
from rich.text import Text

from hornbook.track.board import Board
from hornbook.track.runs import find_runs
from hornbook.track.serve import BoardServer

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
WIDTH = 104
"""Columns of the terminal; longer lines end in an ellipsis."""

STEPS_SHOWN = 4
"""Lines of training steps at the beginning and at the end; those between become one line of dots."""

TEXT_SHOWN = 6
"""Lines of the generated text."""

WINDOW = (1000, 1225)
"""Width and height of the picture of a page, in pixels."""

CHROMIUM = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")

STYLES = {
    re.compile(r"^\$ "): "bold bright_white",
    re.compile(r"^step [\d,]+  (validation loss|generated text)|bits_per_byte {2}"): "green",
    re.compile(r"^saved "): "dim",
}
"""Style of the first pattern that a line contains."""

_STEP = re.compile(r"^step [\d,]+/")
_REMOTE_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    """Run the demo where the folder holds none, and draw both pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--demo", type=Path, metavar="DIR", help="folder of the demo and its log (default: temporary)")
    parser.add_argument("--board", type=Path, metavar="DIR", help="folder of runs, to draw the board alone")
    arguments, options = parser.parse_known_args()
    if arguments.board:
        draw_board(arguments.board, PICTURES / "board.png")
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.demo or Path(temporary)
        log = folder / "demo.log"
        if not log.exists():
            run_demo(folder, log, options)
        PICTURES.mkdir(parents=True, exist_ok=True)
        draw_terminal(log.read_text(encoding="utf-8"), PICTURES / "terminal.svg")
        draw_page((folder / "demo" / "run" / "report.html").resolve().as_uri(), PICTURES / "report.png")


def run_demo(folder: Path, log: Path, options: list[str]) -> None:
    """Run ``hornbook demo`` in the folder and write its output to the log."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "hornbook", "demo", *options]
    partial = log.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as output:
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}  # keeps the order of standard output and error
        subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, check=True)
    partial.rename(log)


def draw_terminal(output: str, picture: Path) -> None:
    """Write the demo's output as an SVG: each command with its result, the training shortened to its two ends."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in shorten(output.strip().splitlines()):
        style = next((style for pattern, style in STYLES.items() if pattern.search(line)), "")
        console.print(Text(line, style=style), no_wrap=True, overflow="ellipsis")
    svg = console.export_svg(title="hornbook demo")
    picture.write_text(_REMOTE_FONTS.sub("", svg), encoding="utf-8")


def shorten(lines: list[str]) -> list[str]:
    """Keep both ends of the training and the beginning of generated texts, without blank lines in them."""
    steps = [number for number, line in enumerate(lines) if _STEP.search(line)]
    if len(steps) > 2 * STEPS_SHOWN:
        lines = [*lines[: steps[STEPS_SHOWN]], "...", *lines[steps[-STEPS_SHOWN] :]]
    start = next(number for number, line in enumerate(lines) if line.startswith("$ hornbook generate")) + 1
    before: list[str] = []
    for is_sample, group in groupby(lines[:start], lambda line: not line or line.startswith("    ")):
        written = [line for line in group if line.strip() or not is_sample] or [""]
        cut = is_sample and len(written) > TEXT_SHOWN // 2
        before += [*written[: TEXT_SHOWN // 2], "    ..."] if cut else written
    end = next(number for number, line in enumerate(lines) if line.startswith("$ hornbook runs"))
    *text, timing = [line for line in lines[start:end] if line.strip()]
    shown = [*text[:TEXT_SHOWN], "..."] if len(text) > TEXT_SHOWN else text
    return [*before, *shown, timing, "", *lines[end:]]


def draw_board(folder: Path, picture: Path) -> None:
    """Serve the runs of a folder, and photograph the board with all of them."""
    with BoardServer(Board([folder]), "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shown = urlencode([("run", str(run)) for run in find_runs(folder)])
        draw_page(f"{server.url}#{shown}", picture)
        server.shutdown()


def draw_page(address: str, picture: Path) -> None:
    """Photograph the upper part of a page with Chromium, in light colors and, as ``NAME-dark.png``, in dark ones.

    Raises:
        SystemExit: Chromium is not installed.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("the picture of a page needs Chromium: apt-get install chromium")
    width, height = WINDOW
    size = f"--window-size={width},{height}"
    for dark, target in ((0, picture), (1, picture.with_stem(f"{picture.stem}-dark"))):
        colors = f"--blink-settings=preferredColorScheme={1 - dark}"
        command = [chromium, *CHROMIUM, size, colors, "--virtual-time-budget=3000", f"--screenshot={target}", address]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
