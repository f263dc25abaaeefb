"""Draw the two pictures of README.md: what ``hornbook demo`` prints, and the report page of its run.

::

    python tools/pictures.py                            # run the demo, then write docs/pictures/
    python tools/pictures.py --demo /tmp/pictures       # draw a demo that this tool ran earlier

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
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
WIDTH = 104
"""Columns of the terminal; longer lines end in an ellipsis."""

STEPS_SHOWN = 4
"""Lines of training steps at the beginning and at the end; those between become one line of dots."""

WINDOW = (1000, 1120)
CHROMIUM = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")

_STEP = re.compile(r"step [\d,]+/")
_SAVED = re.compile(r"saved |step [\d,]+  the model writes")
_REMOTE_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    """Run the demo where the folder holds none, and draw both pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--demo", type=Path, metavar="DIR", help="folder of the demo and its log (default: temporary)")
    parser.add_argument("--minutes", type=float, default=5.5, help="length of the demo (default: 5.5)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.demo or Path(temporary)
        log = folder / "demo.log"
        if not log.exists():
            run_demo(folder, log, arguments.minutes)
        PICTURES.mkdir(parents=True, exist_ok=True)
        draw_terminal(log.read_text(encoding="utf-8"), PICTURES / "terminal.svg")
        draw_page(folder / "demo" / "run" / "report.html", PICTURES / "report.png")


def run_demo(folder: Path, log: Path, minutes: float) -> None:
    """Run ``hornbook demo`` in the folder and write what it prints, with its colors, to the log."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "hornbook", "demo", "--minutes", f"{minutes:g}"]
    environment = os.environ | {"FORCE_COLOR": "1", "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"}
    options = {"cwd": folder, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    output = subprocess.run(command, check=True, text=True, encoding="utf-8", **options).stdout
    log.write_text(output, encoding="utf-8")


def draw_terminal(output: str, picture: Path) -> None:
    """Write the demo's output as an SVG: each command with its result, the training shortened to its two ends."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in shorten(output.strip().splitlines()):
        text = Text.from_ansi(line)
        if text.plain.startswith("$ "):
            text.stylize("bold")
        console.print(text, no_wrap=True, overflow="ellipsis")
    svg = console.export_svg(title="hornbook demo")
    picture.write_text(_REMOTE_FONTS.sub("", svg), encoding="utf-8")


def shorten(lines: list[str]) -> list[str]:
    """Keep the first and the last training steps, and drop the lines of checkpoints and samples between them."""
    steps = [number for number, line in enumerate(lines) if _STEP.search(line)]
    if len(steps) <= 2 * STEPS_SHOWN:
        return lines
    return [*lines[: steps[STEPS_SHOWN]], "...", *lines[steps[-STEPS_SHOWN] :]]


def draw_page(page: Path, picture: Path) -> None:
    """Photograph the upper part of a page with Chromium.

    Raises:
        SystemExit: Chromium is not installed.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("the report's picture needs Chromium: apt-get install chromium")
    width, height = WINDOW
    size = f"--window-size={width},{height}"
    subprocess.run([chromium, *CHROMIUM, size, f"--screenshot={picture}", page.resolve().as_uri()], check=True)


if __name__ == "__main__":
    main()
