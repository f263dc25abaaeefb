"""The live board: the page of runs for a server, which polls for changes.

::

    page()                              the page, without runs
    answer({"run": [...], "seen": [...], "have": [...]})
        -> {"signature", "selected", "parts": {"head", "runs", "group", "before", "after"}, "curves": [...]}
        -> only {"signature"} if nothing has changed since the answer with that signature

A run is read again when one of its files changes, but only the new lines of its log, in a thread of its own; see
`watched`. Requests can name only runs in a list that the board made itself; no other file is opened. Rows of runs that
have ended and are not shown are dropped.
"""

import hashlib
import itertools
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from hornbook.track import comparison_page, report, units
from hornbook.track.board_list import SORTS, Choice, Listed, group_options, list_of, options
from hornbook.track.curves import run_labels
from hornbook.track.figures import curves_of, line_styles
from hornbook.track.page import Parts, document, join, tag
from hornbook.track.runs import compare_read, find_runs
from hornbook.track.watched import Background, Reading, WatchedRun
from hornbook.version import __version__
from hornbook.wording import one_line

SEARCH_SECONDS = 5.0
"""Seconds for which a list of the runs below the folders is cached."""
MOST_SHOWN = 26
PATIENCE_SECONDS = 5.0
"""Seconds for which an answer waits for the files of a run; without an answer of its disk, the run is shown as such."""
_NUM_ROWS, _STYLE = re.compile(r"[0-9]{1,15}"), re.compile(r"[0-9]{1,3}")

Query: TypeAlias = Mapping[str, Sequence[str]]


class Shown(NamedTuple):
    """A run that is shown, as last read.

    Attributes:
        waiting: seconds for which its disk has not answered, None if it has.
        style: style of its curves; see `line_styles`.
    """

    run: WatchedRun
    now: Reading
    waiting: float | None
    style: int


class Board:
    """The live board of the runs below some folders. Several threads may ask it at once.

    Args:
        roots: folders to search, repeatedly; runs and the folders themselves may appear later.
        clock: monotonic clock in seconds.
        patience: seconds to wait for the disk of a run.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._roots, self._clock, self._patience = roots, clock, patience
        self._runs: dict[str, WatchedRun] = {}
        self._searched = -SEARCH_SECONDS
        self._search = Background()
        self._by_default: list[WatchedRun] = []

    def page(self) -> str:
        """Return the page, which fetches its content."""
        foot = f"hornbook {__version__} serves {', '.join(map(str, self._roots))}"
        controls = [
            tag("label", "Find ", tag("input", type="search", id="find", placeholder="name, tag, state, note")),
            tag("label", "Order by ", tag("select", options(SORTS), id="sort")),
            tag("label", "Group by ", tag("select", id="group")),
        ]
        return document(Parts(title="hornbook", foot=foot), live=tag("form", *controls, class_="find"))

    def answer(self, query: Query) -> dict[str, Any]:
        """Return the content of the page, or only its signature if nothing has changed.

        Args:
            query: ``run``, the runs to show; for each of them ``seen``, "token.rows" of its log on the page, and
                ``style``, that of its curves there; ``find``, ``sort`` and ``group``, see `Choice`; ``have``, the
                signature of the last answer. Unknown values are ignored.
        """
        if self._clock() - self._searched >= SEARCH_SECONDS:
            self._search.start(self._find)
        self._search.wait(self._patience)
        runs = self._runs
        asked = [runs[name] for name in dict.fromkeys(query.get("run", ())) if name in runs][:MOST_SHOWN]
        self._refresh(runs.values(), asked or self._by_default)
        if not asked:
            self._by_default = sorted(runs.values(), key=lambda run: run.now.recency)[-1:]
            self._refresh(self._by_default, self._by_default)
        selected = asked or self._by_default
        styles = dict(zip(query.get("run", ()), query.get("style", ()), strict=False))
        kept = [int(style) if _STYLE.fullmatch(style := styles.get(run.id, "")) else None for run in selected]
        shown = sorted(
            (
                Shown(run, run.now, self._overdue(run), style)
                for run, style in zip(selected, line_styles(kept), strict=True)
            ),
            key=lambda one: one.run.number,
        )
        choice = Choice(*((list(query.get(name, ())) or [""])[0] for name in Choice._fields))
        signature = self._signature(runs.values(), shown, choice)
        if [signature] == list(query.get("have", ())):
            return {"signature": signature}
        seen = dict(zip(query.get("run", ()), query.get("seen", ()), strict=False))
        parts, listed = self._parts(shown), self._listed(runs.values(), shown)
        return {
            "signature": signature,
            "selected": [run.id for run in selected],
            "title": parts.title,
            "parts": {
                "head": parts.head, "runs": list_of(listed, choice), "group": group_options(listed),
                "before": parts.before, "after": parts.after,
            },
            "curves": [
                _curves(one, seen.get(one.run.id, "")) for one in shown if one.now.files and one.waiting is None
            ],
        }  # fmt: skip

    def _find(self) -> None:
        found = [folder for root in self._roots if root.is_dir() for folder in find_runs(root)]
        known = {run.folder: run for run in self._runs.values()}
        numbers = itertools.count(max((run.number for run in known.values()), default=-1) + 1)
        runs = [known.get(folder) or WatchedRun(folder, next(numbers)) for folder in dict.fromkeys(found)]
        self._runs, self._searched = {run.id: run for run in runs}, self._clock()

    def _refresh(self, runs: Collection[WatchedRun], shown: Collection[WatchedRun]) -> None:
        """Read what has changed, but wait for no disk longer than the patience."""
        for run in runs:
            run.refresh(is_shown=run in shown)
        for run in runs:
            run.wait(self._patience)

    def _overdue(self, task: Background) -> float | None:
        """Return the seconds for which a disk has not answered, None if it has, or may still in time."""
        return seconds if (seconds := task.waiting) is not None and seconds >= self._patience else None

    def _signature(self, runs: Iterable[WatchedRun], shown: Sequence[Shown], choice: Choice) -> str:
        listed = [[run.id, run.now.stamp, self._overdue(run) is None] for run in runs]
        seen = [
            [run.number, now.token, now.files is None, waiting is None, style] for run, now, waiting, style in shown
        ]
        return hashlib.sha256(json.dumps([listed, seen, choice]).encode()).hexdigest()

    def _parts(self, shown: Sequence[Shown]) -> Parts:
        problems = [(run, _problem(now, waiting)) for run, now, waiting, _ in shown]
        notes = [f"{run.folder}: {problem}" for run, problem in problems if problem]
        if (waiting := self._overdue(self._search)) is not None:
            notes.append(f"The disk has not answered the search for runs for {units.duration(waiting)}.")
        said = join(tag("p", note, class_="note") for note in notes)
        read = [
            (run, now.files, list(now.samples), style)
            for run, now, waiting, style in shown
            if now.files and not _problem(now, waiting)
        ]
        if not read:
            searched = ", ".join(map(str, self._roots))
            hint = tag("p", f"No runs below {searched} yet: `hornbook train RECIPE` starts one.", class_="note")
            return Parts(title="hornbook", head=join([tag("h1", "Runs"), said or hint]))
        if len(read) == 1:
            ((_, files, samples, _),) = read
            parts = report.parts_of(files, samples)
        else:
            labelled = [(_label(run), style) for run, _, _, style in read]
            parts = comparison_page.comparison_parts(
                compare_read([files for _, files, _, _ in read]), labelled, [samples for _, _, samples, _ in read]
            )
        return Parts(title=parts.title, head=join([parts.head, said]), before=parts.before, after=parts.after)

    def _listed(self, runs: Iterable[WatchedRun], shown: Sequence[Shown]) -> list[Listed]:
        """Return the runs in the order of their labels, those that are shown with the styles of their curves."""
        styles = {run.run.id: run.style for run in shown}
        return [
            Listed(
                id=run.id,
                label=_label(run),
                title=one_line(run.folder.resolve().name),
                summary=run.now.summary,
                recipe=run.now.recipe,
                recency=run.now.recency,
                problem=_state_and_problem(run.now, self._overdue(run)),
                style=styles.get(run.id),
            )
            for run in sorted(runs, key=lambda run: run.number)
        ]


def _problem(now: Reading, waiting: float | None) -> str | None:
    """Return why a run cannot be shown, if so."""
    if waiting is not None:
        return f"its disk has not answered for {units.duration(waiting)}; the board tries again"
    return now.problem


def _state_and_problem(now: Reading, waiting: float | None) -> tuple[str, str] | None:
    problem = _problem(now, waiting)
    return None if problem is None else ("unreadable" if waiting is None else "no answer", problem)


def _label(run: WatchedRun) -> str:
    return run_labels(run.number + 1)[run.number]


def _curves(shown: Shown, seen: str) -> dict[str, Any]:
    run, now, _, style = shown
    assert now.files is not None
    token, _, count = seen.rpartition(".")
    is_continued = token == now.token and _NUM_ROWS.fullmatch(count) and int(count) <= len(now.files.rows)
    return curves_of(
        now.files, label=_label(run), number=style, since=int(count) if is_continued else 0, token=now.token
    )
