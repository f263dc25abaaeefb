"""Pictures of block-sparse patterns, from the rows of kind ``topology`` in a run's log.

::

    {"kind": "topology", "step": 200, "layer": "blocks.0.feed_forward.up", "pattern": ["0f3…", …], "tried": 0.17, …}
        -> the pattern at the start and after the last update, one square per cell, darker for more blocks
"""

import re
from collections.abc import Sequence

from hornbook.track import units
from hornbook.track.page import Html, join, table, tag
from hornbook.track.runs import Row
from hornbook.track.units import number

_LEVELS = 15
_DIGITS = re.compile("[0-9a-f]*")


def pattern_table(rows: Sequence[Row]) -> Html:
    """Return a row per layer with its first and last logged pattern; nothing without rows.

    Rows of step 0 have the initial patterns; logs of old runs start with the first update.
    """
    layers: dict[str, list[Row]] = {}
    for row in rows:
        layers.setdefault(str(row.get("layer", "")), []).append(row)
    head = ("Layer", "First pattern", "Last pattern", "Density", "Ever tried", "Updates", "Blocks replaced")
    lines = []
    for name, found in layers.items():
        first, last = found[0], found[-1]
        replaced = sum(number(row, "pruned") or 0 for row in found)
        shares = (number(last, key) for key in ("density", "tried"))
        percents = (units.MISSING if share is None else f"{share:.1%}" for share in shares)
        pictures = (_picture(row, f"pattern of {name} after step {row['step']}") for row in (first, last))
        num_updates = sum(row["step"] != 0 for row in found)
        lines.append((name, *pictures, *percents, units.count(num_updates), units.count(replaced)))
    return table(head, lines, frozenset({3, 4, 5, 6}))


def _picture(row: Row, described: str) -> Html:
    """Return a pattern as squares whose opacity is the share of blocks that exist."""
    pattern = row.get("pattern")
    if not isinstance(pattern, list) or not all(isinstance(line, str) and _DIGITS.fullmatch(line) for line in pattern):
        return Html()
    paths: dict[int, list[str]] = {}
    for at, line in enumerate(pattern):
        for column, digit in enumerate(line):
            if digit != "0":
                paths.setdefault(int(digit, 16), []).append(f"M{column} {at}h1v1h-1z")
    squares = join(
        tag("path", d="".join(path), fill="currentColor", fill_opacity=f"{level / _LEVELS:.2f}")
        for level, path in sorted(paths.items())
    )
    size = max(map(len, pattern), default=0)
    return tag(
        "svg", squares, viewBox=f"0 0 {size} {len(pattern)}", width=4 * size, height=4 * len(pattern), role="img",
        aria_label=described,
    )  # fmt: skip
