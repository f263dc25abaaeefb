"""Draw the losses of ``scaling_runs.py`` and the law that was fitted to them: a panel per corpus, a curve per width.

::

    python benchmarks/scaling_figure.py benchmarks/scaling_runs.json docs/pictures/scaling.svg
"""

import argparse
import json
import math
from pathlib import Path

import numpy

from hornbook.plan.dial import LAW
from scaling_fit import Run

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 250, 260, 44, 34, 40
_COLORS = {1: "#7b5ea7", 2: "#2a78b5", 3: "#2a9d8f", 4: "#c8502e"}  # of widths in heads
_NAMES = {"books": "seven novels", "linux": "Linux's documentation", "cpp": "C++ headers"}
_FIRST, _LAST = 18, 22  # powers of two of the tokens


def panel(runs: list[Run], scale: float, floor: float, left: float) -> str:
    """Return the points and curves of a corpus, with axes, as SVG."""
    losses = [run["bits_per_byte"] for run in runs]
    low, high = math.floor(10 * min(losses)) / 10, math.ceil(10 * max(losses)) / 10

    def place(tokens: float, loss: float) -> str:
        x = left + _WIDTH * (math.log2(tokens) - _FIRST) / (_LAST - _FIRST)
        return f"{x:.1f},{_TOP + _HEIGHT * (high - loss) / (high - low):.1f}"

    parts = [f'<text x="{left}" y="{_TOP - 14}" class="title">{_NAMES[runs[0]["corpus"]]}</text>']
    for tenth in range(round(10 * low), round(10 * high) + 1, 2):
        y = place(1, tenth / 10).partition(",")[2]
        parts += [f'<path d="M{left} {y}h{_WIDTH}" class="grid"/>']
        parts += [f'<text x="{left - 6}" y="{y}" dy="4" text-anchor="end">{tenth / 10:.1f}</text>']
    for power in range(_FIRST, _LAST + 1):
        x, label = place(2**power, low).partition(",")[0], f"{2**power / 1e6:.2g}M"
        parts.append(f'<text x="{x}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{label}</text>')
    for width, color in _COLORS.items():
        own = [run for run in runs if run["width"] == width]
        if not own:
            continue
        powers = [_FIRST + step / 8 for step in range(8 * (_LAST - _FIRST) + 1)]
        longest, unique = max(run["tokens"] for run in own), own[0]["unique_tokens"]
        curve = [
            place(2**power, floor + scale * LAW.loss(width, 2**power, unique))
            for power in powers
            if 2**power <= longest and floor + scale * LAW.loss(width, 2**power, unique) <= high
        ]
        parts.append(f'<polyline points="{" ".join(curve)}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        for run in own:
            x, y = place(run["tokens"], run["bits_per_byte"]).split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3.2" fill="{color}"/>')
    return "".join(parts)


def main() -> None:
    """Write the figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", type=Path, help="file of results")
    parser.add_argument("figure", type=Path, help="SVG to write")
    given = parser.parse_args()
    runs: list[Run] = [run for run in json.loads(given.runs.read_text()) if run["tokens"] >= 2**_FIRST]
    width, height = 3 * _WIDTH + 2 * (_GAP + 10) + _LEFT + 20, _TOP + _HEIGHT + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        "<style>text{fill:#444;font:12px sans-serif}.title{font:bold 14px sans-serif}.grid{stroke:#ddd}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, corpus in enumerate(_NAMES):
        own = [run for run in runs if run["corpus"] == corpus]
        losses = [LAW.loss(run["width"], run["tokens"], run["unique_tokens"]) for run in own]
        scale, floor = numpy.polyfit(losses, [run["bits_per_byte"] for run in own], 1)
        parts.append(panel(own, scale, floor, _LEFT + number * (_WIDTH + _GAP + 10)))
    x = float(_LEFT)
    for heads, color in _COLORS.items():
        if not any(run["width"] == heads and run["corpus"] in _NAMES for run in runs):
            continue
        parts.append(f'<circle cx="{x}" cy="{height - 14}" r="4" fill="{color}"/>')
        parts.append(f'<text x="{x + 9}" y="{height - 10}">{64 * heads} columns</text>')
        x += 100
    parts.append(f'<text x="{x + 20}" y="{height - 10}">bits per byte over tokens of training</text></svg>')
    given.figure.write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
