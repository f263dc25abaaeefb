"""Compare runs: their facts, overlaid curves over steps, tokens or time, and the differences of their recipes.

This is a report's page with several runs, as a file (``write_comparison``) or a part of the live board.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from hornbook.storage.files import replace_file
from hornbook.track import metrics, units
from hornbook.track.curves import Over, run_labels
from hornbook.track.figures import curves_of, line_styles, style_class
from hornbook.track.page import Html, Parts, document, join, notes_of, section, table, tag
from hornbook.track.report import sample_list
from hornbook.track.run_tables import pattern_table, stage_table
from hornbook.track.runs import Comparison, Row, RunFiles, RunSummary, plain_value
from hornbook.version import __version__

Labelled: TypeAlias = tuple[str, int, RunFiles]
"""A run with its label, "A", and its style; see `line_styles`."""


def write_comparison(path: Path, comparison: Comparison, over: Over) -> None:
    """Write the page, atomically.

    Args:
        path: path of the file.
        comparison: comparison of the runs.
        over: the initial horizontal axis.

    Raises:
        StorageError: the page cannot be written.
    """
    replace_file(path, render_comparison(comparison, over).encode("utf-8"))


def render_comparison(comparison: Comparison, over: Over) -> str:
    """Return the page."""
    labels = run_labels(len(comparison.runs))
    labelled = list(zip(labels, line_styles([None] * len(labels)), strict=True))
    curves = [
        curves_of(run, label=label, number=style)
        for run, (label, style) in zip(comparison.files, labelled, strict=True)
    ]
    samples = [metrics.read(run.folder / "samples.jsonl") for run in comparison.files]
    return document(comparison_parts(comparison, labelled, samples), curves, over=over)


def comparison_parts(
    comparison: Comparison, labelled: Sequence[tuple[str, int]], samples: Sequence[Sequence[Row]]
) -> Parts:
    """Return the parts of the page around the curves of several runs.

    Args:
        comparison: comparison of the runs.
        labelled: label and style of each run; see `line_styles`.
        samples: generated texts of each run.
    """
    runs = [(label, style, run) for (label, style), run in zip(labelled, comparison.files, strict=True)]
    written = {run.folder: rows for run, rows in zip(comparison.files, samples, strict=True)}
    names = " · ".join(dict.fromkeys(summary.name for summary in comparison.runs))
    cautions = [tag("p", caution, class_="note") for caution in comparison.cautions]
    after = [
        _differences(comparison, runs),
        section("Block-sparse patterns", *_each(runs, lambda run: pattern_table(run.of_kind("topology")))),
        section("Pipeline stages", *_each(runs, stage_table)),
        section("Samples", *_each(runs, lambda run: sample_list(written[run.folder][-1:]))),
    ]
    return Parts(
        title=f"{names} · hornbook",
        head=join([tag("h1", f"{len(comparison.runs)} runs"), *cautions]),
        before=_summaries(comparison, runs),
        after=join(after),
        foot=f"Written by hornbook {__version__}",
    )


def _summaries(comparison: Comparison, runs: Sequence[Labelled]) -> Html:
    """Return a row for each run, without the objective if all have the same, and without columns that have no value."""
    rows = []
    for (label, style, _), summary in zip(runs, comparison.runs, strict=True):
        losses = dict(zip(("Loss", "Validation", "Best", "Bits per byte"), _losses(summary), strict=True))
        rows.append(
            {
                "": _key(style, label),
                "Run": tag("div", summary.folder, notes_of(summary.tags, summary.note)),
                "State": summary.state,
                "Objective": summary.objective or units.MISSING,
                "Parameters": units.short(summary.num_parameters),
                "Steps": units.MISSING if summary.state == "imported" else units.count(summary.step),
                "Tokens": units.short(summary.tokens),
                **losses,
                "Tokens/s": units.short(summary.tokens_per_second),
                "Time": units.duration(summary.seconds),
            }
        )
    hidden = {name for name in rows[0] if all(row[name] == units.MISSING for row in rows)}
    hidden |= {"Objective"} if len({row["Objective"] for row in rows}) == 1 else set()
    head = [name for name in rows[0] if name not in hidden]
    numeric = frozenset(at for at, name in enumerate(head) if name not in ("", "Run", "State", "Objective"))
    found = table(head, [[row[name] for name in head] for row in rows], numeric, is_stacked=True)
    return tag("div", found, class_="compared")


def _losses(summary: RunSummary) -> Iterator[Html | str]:
    """Yield the losses and bits per byte, each with its step, gray if a newer measurement exists.

    The validation loss has the number of tokens, too, and their share of the text.
    """
    for name, (value, step, is_old) in summary.measured.items():
        if value is None:
            yield units.MISSING
            continue
        shown = units.bits(value) if name == "bits_per_byte" else units.loss(value)
        said = [f"step {units.count(step)}"] if step is not None else []
        if name == "validation_loss" and summary.validation_scored:
            said += summary.validation_scored.replace(" of the text", "").split(", ", 1)
        yield tag("span", shown, *(tag("small", one) for one in said), class_="measured old" if is_old else "measured")


def _key(style: int, label: str) -> Html:
    """Return the label of a run in its color."""
    return tag("span", label, class_=f"key {style_class(style)}")


def _each(runs: Sequence[Labelled], make: Callable[[RunFiles], Html]) -> Iterator[Html]:
    """Yield the non-empty results of ``make`` for each run, below the run's name."""
    for label, style, run in runs:
        if made := make(run):
            yield tag("div", tag("h3", _key(style, label), f" {run.title}"), made, class_="task")


def _differences(comparison: Comparison, runs: Sequence[Labelled]) -> Html:
    rows = [
        (key, *("not set" if value is None else str(plain_value(value)) for value in values))
        for key, values in comparison.differences.items()
    ]
    keys = [_key(style, label) for label, style, _ in runs]
    found = table(("Recipe", *keys), rows) if rows else tag("p", "The recipes are identical.", class_="note")
    return section("Where the recipes differ", join([found]))
