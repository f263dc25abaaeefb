"""The live board: the page of runs for a server, which polls for changes.

::

    page()                              the page, without runs
    answer({"run": [...], "seen": [...], "have": [...]})
        -> {"signature", "selected", "parts": {"head", "runs", "before", "after"}, "curves": [...]}
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
from hornbook.track.curves import run_labels
from hornbook.track.figures import curves_of, line_styles, style_class
from hornbook.track.page import Html, Parts, document, join, tag
from hornbook.track.runs import compare_read, find_runs
from hornbook.track.watched import Background, Reading, WatchedRun
from hornbook.version import __version__

SEARCH_SECONDS = 5.0
"""Seconds for which a list of the runs below the folders is cached."""
MOST_SHOWN = 26
PATIENCE_SECONDS = 5.0
"""Seconds for which an answer waits for the files of a run; without an answer of its disk, the run is shown as such."""
_NUM_ROWS = re.compile(r"[0-9]{1,15}")

Query: TypeAlias = Mapping[str, Sequence[str]]


class Shown(NamedTuple):
    """A run that is shown, as last read, and the seconds for which its disk has not answered, None if it has."""

    run: WatchedRun
    now: Reading
    waiting: float | None


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
        return document(Parts(title="hornbook", foot=foot), live=True)

    def answer(self, query: Query) -> dict[str, Any]:
        """Return the content of the page, or only its signature if nothing has changed.

        Args:
            query: ``run``, the runs to show; ``seen``, for each of them, "token.rows" of its log on the page; ``have``,
                the signature of the last answer. Unknown values are ignored.
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
        shown = [Shown(run, run.now, self._overdue(run)) for run in asked or self._by_default]
        signature = self._signature(runs.values(), shown)
        if [signature] == list(query.get("have", ())):
            return {"signature": signature}
        seen = dict(zip(query.get("run", ()), query.get("seen", ()), strict=False))
        parts = self._parts(shown)
        return {
            "signature": signature,
            "selected": [run.id for run, _, _ in shown],
            "title": parts.title,
            "parts": {
                "head": parts.head, "runs": self._list(runs.values(), shown),
                "before": parts.before, "after": parts.after,
            },
            "curves": [
                _curves(run, now, style, seen.get(run.id, ""))
                for (run, now, waiting), style in zip(shown, _styles_of(shown), strict=True)
                if now.files and waiting is None
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

    def _signature(self, runs: Iterable[WatchedRun], shown: Sequence[Shown]) -> str:
        listed = [[run.id, run.now.stamp, self._overdue(run) is None] for run in runs]
        seen = [[run.number, now.token, now.files is None, waiting is None] for run, now, waiting in shown]
        return hashlib.sha256(json.dumps([listed, seen]).encode()).hexdigest()

    def _parts(self, shown: Sequence[Shown]) -> Parts:
        problems = [(run, _problem(now, waiting)) for run, now, waiting in shown]
        notes = [f"{run.folder}: {problem}" for run, problem in problems if problem]
        if (waiting := self._overdue(self._search)) is not None:
            notes.append(f"The disk has not answered the search for runs for {units.duration(waiting)}.")
        said = join(tag("p", note, class_="note") for note in notes)
        read = [
            (run, now.files, list(now.samples), style)
            for (run, now, waiting), style in zip(shown, _styles_of(shown), strict=True)
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

    def _list(self, runs: Iterable[WatchedRun], shown: Sequence[Shown]) -> Html:
        """Return the list of runs in the order of their labels, those that are shown in the colors of their curves."""
        styles = {run.id: style for (run, _, _), style in zip(shown, _styles_of(shown), strict=True)}
        ordered = sorted(runs, key=lambda run: run.number)
        entries = [tag("li", _entry(run, self._overdue(run), styles.get(run.id))) for run in ordered]
        return tag("ul", *entries, class_="runs") if entries else Html()


def _problem(now: Reading, waiting: float | None) -> str | None:
    """Return why a run cannot be shown, if so."""
    if waiting is not None:
        return f"its disk has not answered for {units.duration(waiting)}; the board tries again"
    return now.problem


def _label(run: WatchedRun) -> str:
    return run_labels(run.number + 1)[run.number]


def _styles_of(shown: Sequence[Shown]) -> list[int]:
    return line_styles([run.number for run, _, _ in shown])


def _curves(run: WatchedRun, now: Reading, style: int, seen: str) -> dict[str, Any]:
    assert now.files is not None
    token, _, count = seen.rpartition(".")
    is_continued = token == now.token and _NUM_ROWS.fullmatch(count) and int(count) <= len(now.files.rows)
    return curves_of(
        now.files, label=_label(run), number=style, since=int(count) if is_continued else 0, token=now.token
    )


def _entry(run: WatchedRun, waiting: float | None, style: int | None) -> Html:
    """Return a run as a checkbox: label, name, state, progress, losses."""
    now = run.now
    summary, problem = now.summary, _problem(now, waiting)
    if summary is None or problem:
        detail, share = problem or "", 0.0
        state = "unreadable" if waiting is None else "no answer"
    else:
        said = [
            f"step {units.progress(summary.step, summary.total_steps)}",
            f"training loss {units.loss(summary.loss)}",
        ]
        if summary.validation_loss is not None:
            loss = units.at_step(units.loss(summary.validation_loss), summary.validation_step, summary.step)
            scored = f" ({summary.validation_scored})" if summary.validation_scored else ""
            said.append(f"validation loss {loss}{scored}")
        detail, state = " · ".join([*said, summary.folder]), summary.state
        share = min(1.0, summary.step / summary.total_steps) if summary.total_steps else 0.0
    box = tag("input", type="checkbox", value=run.id, aria_label=f"show {run.id}")
    name = tag("strong", f"{_label(run)}  {summary.name if summary else run.folder.name}")
    state_of_run = tag("span", state, class_=f"state {state}")
    note = tag("span", detail, class_="note", title=detail)
    bar = tag("span", tag("i", style=f"width:{100 * share:.1f}%"), class_="bar", aria_hidden="true")
    return tag("label", box, name, state_of_run, note, bar, class_=None if style is None else style_class(style))
