"""The list of runs on the live board: which of them it has, in which order and in which groups, as cards.

    Choice(find="base", sort="validation", group="optimizer.name")
        -> optimizer.name = adamw   [A base  finished] [C base-2  running, 12 min left]
           optimizer.name = muon    [B base-muon  finished]

The server filters and sorts, since it has the recipes, so the page sends the reader's choice with each request. The
price: the list follows the keyboard only after an answer.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from hornbook.track import units
from hornbook.track.figures import style_class
from hornbook.track.page import Html, escape, join, notes_of, tag
from hornbook.track.runs import RunSummary
from hornbook.wording import counted, one_line

SORTS = {
    "": "label",
    "name": "name",
    "newest": "newest first",
    "validation": "validation loss",
    "progress": "progress",
    "left": "time left",
    "speed": "speed",
}
"""Orders of the list and their names."""
GROUPS = {"": "nothing", "state": "state", "tag": "tag"}
"""Groups of the list besides values of the recipe."""
_LONGEST_VALUE = 60
_WORD = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|[^\W0-9]+")


class Choice(NamedTuple):
    """What the reader wants the list to be; see ``SORTS`` and ``GROUPS``. What does not exist counts as ""."""

    find: str = ""
    sort: str = ""
    group: str = ""


class Listed(NamedTuple):
    """A run in the list.

    Attributes:
        recipe: values of its recipe by dotted key, as texts.
        recency: the greater, the newer.
        problem: state and reason if it cannot be shown.
        style: style of its curves, None if they are not shown.
    """

    id: str
    label: str
    title: str
    summary: RunSummary | None
    recipe: Mapping[str, str]
    recency: tuple[bool, float]
    problem: tuple[str, str] | None
    style: int | None


_Key: TypeAlias = Callable[[RunSummary], float | None]
_NUMBERS: dict[str, _Key] = {
    "validation": lambda run: run.validation_loss,
    "progress": lambda run: -run.step / (run.total_steps or run.step or 1),
    "left": lambda run: run.seconds_left,
    "speed": lambda run: None if run.tokens_per_second is None else -run.tokens_per_second,
}


def group_options(runs: Sequence[Listed]) -> Html:
    """Return the options of what the list can be grouped by: `GROUPS` and the recipe keys whose values differ."""
    recipes = [run.recipe for run in runs if run.recipe]
    keys = sorted({key for recipe in recipes for key in recipe})
    differing = [key for key in keys if len({recipe.get(key) for recipe in recipes}) > 1]
    return options(GROUPS | {key: key for key in differing})


def options(names: Mapping[str, str]) -> Html:
    """Return the options of a menu, from their values and names."""
    return join(tag("option", name, value=value) for value, name in names.items())


def list_of(runs: Sequence[Listed], choice: Choice) -> Html:
    """Return the list of runs.

    Args:
        runs: all runs, in the order of their labels.
        choice: words that a run must have in its names, state, tags or note; the order; the groups.
    """
    if not runs:
        return Html()
    group = choice.group if choice.group in GROUPS or any(choice.group in run.recipe for run in runs) else ""
    words = choice.find.casefold().split()
    found = [run for run in runs if all(word in _text(run) for word in words)]
    groups: dict[str, list[Listed]] = {}
    for run in _sorted(found, choice.sort):
        for name in _groups_of(run, group):
            groups.setdefault(name, []).append(run)
    said = tag("p", f"{len(found)} of {counted(len(runs), 'run')}", class_="note") if words else ""
    shown = []
    for name, members in sorted(groups.items(), key=lambda item: _natural(item[0])):
        title = tag("h3", name, " ", tag("small", counted(len(members), "run"))) if name else ""
        shown.append(join([title, tag("ul", *(tag("li", _card(run)) for run in members), class_="runs")]))
    return tag("div", said, *shown, class_="list")


def _text(run: Listed) -> str:
    """Return what the words of a search are looked for in."""
    parts = [run.label, run.title, run.id, run.problem[0] if run.problem else ""]
    if run.summary:
        parts += [run.summary.name, run.summary.state, run.summary.objective or "", *run.summary.tags, run.summary.note]
    return "\n".join(parts).casefold()


def _sorted(runs: Sequence[Listed], by: str) -> list[Listed]:
    """Return the runs in an order; those without its value last, equal ones in the order of their labels."""
    if by == "name":
        return sorted(runs, key=lambda run: _natural(run.title))
    if by == "newest":
        return sorted(runs, key=lambda run: run.recency, reverse=True)
    if by not in _NUMBERS:
        return list(runs)
    values = [(run, None if run.summary is None else _NUMBERS[by](run.summary)) for run in runs]
    return [run for run, _ in sorted(values, key=lambda item: (item[1] is None, item[1] or 0.0))]


def _natural(text: str) -> list[tuple[bool, float, str]]:
    """Return a key that sorts numbers in texts by value: ``run-9`` before ``run-10``, ``1e-05`` before ``0.001``."""
    words = _WORD.findall(text.casefold())
    return [(False, float(word), "") if word[0].isdigit() else (True, 0.0, word) for word in words]


def _groups_of(run: Listed, by: str) -> list[str]:
    """Return the headings below which a run is listed; a single empty one without groups."""
    if not by:
        return [""]
    if by == "state":
        return [run.problem[0] if run.problem else run.summary.state if run.summary else "unreadable"]
    if by == "tag":
        return [one_line(name) for name in run.summary.tags] if run.summary and run.summary.tags else ["no tag"]
    value = run.recipe.get(by)
    return [f"{by}: {'not set' if value is None else value[:_LONGEST_VALUE]}"]


def _card(run: Listed) -> Html:
    """Return a run as a checkbox: label, folder, recipe, state; progress, time left; its loss; folder, tags, note."""
    summary = run.summary
    if summary is None or run.problem:
        state, problem = run.problem or ("unreadable", "")
        said, share, recipe = [tag("span", problem, title=problem)], 0.0, ""
    else:
        state, recipe = summary.state, summary.name if summary.name != run.title else ""
        progress = [] if state == "imported" else [f"step {summary.progress}"]
        progress += [f"{units.duration(summary.seconds_left)} left"] if summary.seconds_left is not None else []
        said = [tag("span", " · ".join(progress)), _loss(summary), tag("span", summary.folder, title=summary.folder)]
        said.append(notes_of(summary.tags, summary.note))
        share = min(1.0, summary.step / summary.total_steps) if summary.total_steps else 0.0
    box = tag("input", type="checkbox", value=run.id, aria_label=f"show {run.id}")
    name = tag("strong", f"{run.label}  {run.title}", tag("small", f" {recipe}") if recipe else "")
    detail = tag("span", *said, class_="note")
    bar = tag("span", tag("i", style=f"width:{100 * share:.1f}%"), class_="bar", aria_hidden="true")
    style = None if run.style is None else style_class(run.style)
    return tag("label", box, name, tag("span", state, class_=f"state {state}"), detail, bar, class_=style)


def _loss(summary: RunSummary) -> Html:
    """Return one loss, named, with its step: that of the validation or, before the first one, of the training."""
    kind = "loss" if summary.validation_loss is None else "validation_loss"
    value, step, is_old = summary.measured[kind]
    if value is None:
        return Html()
    title = "training loss" if kind == "loss" else "validation loss"
    at = "" if step is None else f" at step {units.count(step)}"
    scored = f" ({summary.validation_scored})" if summary.validation_scored and kind != "loss" else ""
    scored = scored.replace("± ", "±\N{NO-BREAK SPACE}")
    number = tag("b", units.loss(value), class_="old" if is_old else None)
    return tag("span", f"{title} ", number, escape(f"{at}{scored}"))
