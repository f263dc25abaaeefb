"""The live board: the page of runs for a server, which polls for changes.

::

    page()                              the page, without runs
    answer({"run": [...], "seen": [...], "have": [...]})
        -> {"signature", "selected", "parts": {"head", "runs", "before", "after"}, "curves": [...]}
        -> only {"signature"} if nothing has changed since the answer with that signature

A run is read again when one of its files changes, but only the new lines of its log. Requests can name only runs in a
list that the board made itself; no other file is opened. Rows of runs that have ended and are not shown are dropped.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hornbook.errors import HornbookError
from hornbook.storage.system import is_locked
from hornbook.track import comparison_page, metrics, report, units
from hornbook.track.curves import run_labels
from hornbook.track.figures import curves_of
from hornbook.track.page import Html, Parts, document, join, tag
from hornbook.track.runs import Row, RunFiles, RunSummary, compare_read, find_runs, read_run, summary_of
from hornbook.version import __version__

SEARCH_SECONDS = 5.0
"""Seconds for which a list of the runs below the folders is cached."""
MOST_SHOWN = 26
_WATCHED = ("metrics.jsonl", "samples.jsonl", "evaluation.json", "environment.json", "recipe.toml", "checkpoints")

Query: TypeAlias = Mapping[str, Sequence[str]]


class _Watched:
    """A run as last read; ``problem`` is set if that failed."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number
        self.name = str(folder)
        self.stamp: object = None
        self.summary: RunSummary | None = None
        self.problem: str | None = None
        self.forget()

    def forget(self) -> None:
        """Drop all rows."""
        self._tail = metrics.Tail(self.folder / "metrics.jsonl")
        self.token = secrets.token_hex(4)
        """Identifies the log of a page's rows: it changes when the log is replaced."""
        self.rows: list[Row] = []
        self.samples: list[Row] = []
        self.files: RunFiles | None = None

    def refresh(self, *, is_shown: bool) -> None:
        """Read the changes since the last call; keep only the summary of a run that has ended and is not shown."""
        stamp = _stamp(self.folder)
        if stamp != self.stamp or (is_shown and not self.files and not self.problem):
            self.stamp = stamp
            self._read()
        if self.files and not is_shown and self.summary and self.summary.state != "running":
            self.forget()

    def _read(self) -> None:
        self.problem = None
        try:
            new, is_another = self._tail.new_rows()
            if is_another:
                self.rows, self.token = [], secrets.token_hex(4)
            self.rows += new
            self.samples = metrics.read(self.folder / "samples.jsonl")
            self.files = read_run(self.folder, self.rows)
            self.summary = summary_of(self.files)
        except HornbookError as error:
            self.problem, self.files = str(error), None


def _stamp(folder: Path) -> object:
    """Return a value that changes when a file of the run changes, or when its process starts or ends."""
    found: list[object] = [is_locked(folder)]
    for name in _WATCHED:
        try:
            status = (folder / name).stat()
        except OSError:
            continue
        found.append((name, status.st_mtime_ns, status.st_size, status.st_ino))
    return found


class Board:
    """The live board of the runs below some folders.

    Args:
        roots: folders to search, repeatedly; runs and the folders themselves may appear later.
        clock: monotonic clock in seconds.
    """

    def __init__(self, roots: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._roots, self._clock = roots, clock
        self._runs: dict[str, _Watched] = {}
        self._searched = -SEARCH_SECONDS

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
        self._search()
        asked = dict.fromkeys(query.get("run", ()))
        shown = ([self._runs[name] for name in asked if name in self._runs] or self._default())[:MOST_SHOWN]
        for run in self._runs.values():
            run.refresh(is_shown=run in shown)
        signature = self._signature(shown)
        if [signature] == list(query.get("have", ())):
            return {"signature": signature}
        seen = dict(zip(query.get("run", ()), query.get("seen", ()), strict=False))
        read = [run for run in shown if run.files]
        parts = self._parts(read, [run for run in shown if run.problem])
        return {
            "signature": signature,
            "selected": [run.name for run in shown],
            "title": parts.title,
            "parts": {"head": parts.head, "runs": self._list(), "before": parts.before, "after": parts.after},
            "curves": [self._curves(run, seen.get(run.name, "")) for run in read],
        }

    def _search(self) -> None:
        if self._clock() - self._searched < SEARCH_SECONDS:
            return
        self._searched = self._clock()
        found = [folder for root in self._roots if root.is_dir() for folder in find_runs(root)]
        next_number = max((watched.number for watched in self._runs.values()), default=-1) + 1
        known = {str(folder): self._runs.get(str(folder)) for folder in found}
        fresh = {
            name: _Watched(Path(name), next_number + at) for at, name in enumerate(n for n in known if not known[n])
        }
        self._runs = {name: watched or fresh[name] for name, watched in known.items()}

    def _default(self) -> list[_Watched]:
        """Return the run shown by default: a running one, or the one that logged last."""
        return sorted(self._runs.values(), key=_recency)[-1:]

    def _signature(self, shown: Sequence[_Watched]) -> str:
        known = [[run.name, run.stamp] for run in self._runs.values()], [run.number for run in shown]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()

    def _parts(self, read: Sequence[_Watched], broken: Sequence[_Watched]) -> Parts:
        problems = join(tag("p", f"{run.folder}: {run.problem}", class_="note") for run in broken)
        files = [run.files for run in read if run.files]
        if not files:
            searched = ", ".join(map(str, self._roots))
            hint = tag("p", f"No runs below {searched} yet: `hornbook train RECIPE` starts one.", class_="note")
            return Parts(title="hornbook", head=join([tag("h1", "Runs"), problems or hint]))
        if len(files) == 1:
            parts = report.parts_of(files[0], read[0].samples)
        else:
            parts = comparison_page.comparison_parts(
                compare_read(files), [run.number for run in read], [run.samples for run in read]
            )
        return Parts(title=parts.title, head=join([parts.head, problems]), before=parts.before, after=parts.after)

    def _curves(self, run: _Watched, seen: str) -> dict[str, Any]:
        assert run.files is not None
        token, _, count = seen.rpartition(".")
        is_continued = token == run.token and count.isascii() and count.isdigit() and int(count) <= len(run.rows)
        since = int(count) if is_continued else 0
        label = run_labels(run.number + 1)[run.number]
        return curves_of(run.files, label=label, number=run.number, since=since, token=run.token)

    def _list(self) -> Html:
        """Return the list of runs, running ones and the newest first."""
        ordered = sorted(self._runs.values(), key=_recency, reverse=True)
        return tag("ul", *(tag("li", _entry(run)) for run in ordered), class_="runs") if ordered else Html()


def _recency(run: _Watched) -> tuple[bool, float]:
    log = run.folder / "metrics.jsonl"
    try:
        written = log.stat().st_mtime
    except OSError:
        written = 0.0
    return is_locked(run.folder), written


def _entry(run: _Watched) -> Html:
    """Return a run as a checkbox: name, state, progress, last loss."""
    label = run_labels(run.number + 1)[run.number]
    box = tag("input", type="checkbox", value=run.name, aria_label=f"show {run.name}")
    summary = run.summary
    if summary is None or run.problem:
        detail, state, share = run.problem or "", "unreadable", 0.0
    else:
        loss = summary.loss if summary.validation_loss is None else summary.validation_loss
        said = [f"step {units.progress(summary.step, summary.total_steps)}", f"loss {units.loss(loss)}", summary.folder]
        detail, state = " · ".join(said), summary.state
        share = min(1.0, summary.step / summary.total_steps) if summary.total_steps else 0.0
    name = tag("strong", f"{label}  {summary.name if summary else run.folder.name}")
    state_of_run = tag("span", state, class_=f"state {state}")
    note = tag("span", detail, class_="note", title=detail)
    bar = tag("span", tag("i", style=f"width:{100 * share:.1f}%"), class_="bar", aria_hidden="true")
    color = run.number % comparison_page.NUM_COLORS
    return tag("label", box, name, state_of_run, note, bar, class_=f"run{color}")
