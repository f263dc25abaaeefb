"""Tables of a run's page: its pipeline stages, and its block-sparse patterns from the rows of kind ``topology``.

::

    {"kind": "topology", "step": 200, "layer": "blocks.0.feed_forward.up", "pattern": ["0f3…", …], "tried": 0.17, …}
        -> the pattern at the start and after the last update, one square per cell, darker for more blocks

A stage has its rank, its layers, the balance of the work, and its idle share if the run measured it.
"""

import re
from collections.abc import Sequence
from statistics import median

from hornbook.config.build import recipe_from_dict
from hornbook.config.parallel import head_cost, rank_of
from hornbook.errors import RecipeError
from hornbook.track import units
from hornbook.track.metrics import IDLE
from hornbook.track.page import Html, join, table, tag
from hornbook.track.runs import Row, RunFiles
from hornbook.track.units import number, significant

_LEVELS = 15
_DIGITS = re.compile("[0-9a-f]*")


def stage_table(run: RunFiles) -> Html:
    """Return a row for each stage, with its idle share if the run measured it.

    Empty for a run without a pipeline, or with a recipe of another version.
    """
    try:
        recipe = recipe_from_dict(run.recipe)
    except RecipeError:
        return Html()
    if recipe.parallel.pipeline_parallel == 1:
        return Html()
    head = head_cost(recipe.model, recipe.objective)
    stages = recipe.parallel.stages(recipe.model, recipe.objective)
    costs = [len(layers) + (head if layers is stages[-1] else 0.0) for layers in stages]
    num_ranks, schedule = recipe.parallel.pipeline_parallel, recipe.parallel.pipeline_schedule
    ranks = [rank_of(stage, num_ranks, schedule) for stage in range(len(stages))]
    idle = [_idle(run, rank) for rank in ranks]
    has_idle = any(idle)
    rows = [
        (
            stage,
            ranks[stage],
            _holds(layers, stage, len(stages)),
            *idle[stage : stage + has_idle],
            _bar(cost, max(costs)),
        )
        for stage, (layers, cost) in enumerate(zip(stages, costs, strict=True))
    ]
    note = (
        f"Schedule {recipe.parallel.pipeline_schedule} on {recipe.parallel.pipeline_parallel} ranks; work in layers, "
        "the head counted by its weights."
    )
    if has_idle:
        note += (
            " Idle is the share of the forward and backward passes for which the stage's rank waited for other ranks, "
            "the median over the logged steps."
        )
    columns = ("Stage", "Rank", "Holds", *["Idle"] * has_idle, "Work")
    found = table(columns, rows, frozenset({0, 1, *[3] * has_idle}))
    return tag("div", join([found, tag("p", note, class_="note")]), class_="stages")


def _idle(run: RunFiles, rank: int) -> str:
    shares = [row[key] for row in run.of_kind("train") if isinstance(row.get(key := f"{IDLE}{rank}"), float)]
    return f"{median(shares):.0%}" if shares else ""


def _holds(layers: range, stage: int, num_stages: int) -> str:
    blocks = f"layers {layers.start} to {layers.stop - 1}" if len(layers) > 1 else f"layer {layers.start}"
    parts = ["embedding"] * (stage == 0) + [blocks] * bool(layers) + ["head"] * (stage == num_stages - 1)
    return ", ".join(parts)


def _bar(cost: float, most: float) -> Html:
    bar = tag("span", tag("i", style=f"width:{100 * cost / most:.1f}%"), class_="bar", aria_hidden="true")
    return tag("div", bar, tag("span", significant(cost)), class_="work")


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
