"""A table of a run's pipeline stages: the layers of each rank, and the balance of the work."""

from statistics import median

from hornbook.config.build import recipe_from_dict
from hornbook.config.parallel import head_cost, rank_of
from hornbook.errors import RecipeError
from hornbook.track.metrics import IDLE
from hornbook.track.page import Html, join, table, tag
from hornbook.track.runs import RunFiles
from hornbook.track.units import significant


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
