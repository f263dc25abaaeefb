"""The page of a profile: one self-contained HTML file, next to the traces.

    headline ─► cards     ranks ─► a table     modules, operators ─► bars     memory ─► a curve and the tensors

Blocks are aggregated as `blocks.*.attention.qkv`, with the single blocks folded.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hornbook.storage.files import replace_file
from hornbook.track import charts, units
from hornbook.track.page import Html, card, facts, join, section, still_document, table, tag
from hornbook.track.profile import ModuleTime, Profile, RankProfile
from hornbook.version import __version__
from hornbook.wording import counted

STYLE_SHEET = Path(__file__).parent / "profile.css"
_MODULE_KINDS = {
    "forward": "forward",
    "backward": "backward",
    "recomputed": "forward again, in the backward pass",
    "waiting": "waiting for ranks",
}
_OPERATORS_SHOWN, _MODULES_SHOWN, _HELD_SHOWN = 20, 24, 16
_BLOCK = re.compile(r"\bblocks\.\d+")
_MIB = 1 << 20


def write_profile_page(path: Path, profile: Profile) -> None:
    """Write the page, atomically. Raises StorageError if it cannot be written."""
    replace_file(path, render_profile(profile).encode("utf-8"))


def headline(profile: Profile) -> list[tuple[str, str, str]]:
    """Return the key metrics: name, value, and a detail."""
    data, ranks = f"{profile.data:.1%}", counted(len(profile.ranks), "rank")
    used = "" if profile.tflops is None else f"{units.flop_rate(1e12 * profile.tflops)} of model operations"
    process = max((rank.process_bytes or 0 for rank in profile.ranks), default=0)
    waiting = ("Waiting for data", data, "of the step")
    if len(profile.ranks) > 1:
        waiting = ("Waiting for ranks", f"{profile.waiting:.1%}", f"of the step; for data {data}")
    rows = [
        (
            "Step",
            units.short_time(profile.step_seconds),
            f"median, of the slowest of {ranks}" if len(profile.ranks) > 1 else "median",
        ),
        ("Speed", units.short(profile.tokens_per_second), "tokens per second"),
        ("MFU", "" if profile.mfu is None else f"{profile.mfu:.1%}", used),
        waiting,
        ("Idle stages", "" if profile.idle is None else f"{profile.idle:.1%}", "of the forward and backward passes"),
        ("Peak of tensors", units.size(profile.peak_bytes), f"process {units.size(process)}" if process else ""),
    ]
    return [row for row in rows if row[1]]


def render_profile(profile: Profile) -> str:
    """Return the page."""
    name = profile.facts.get("recipe", "profile")
    lead = " · ".join(profile.facts[key] for key in ("model", "batch", "device") if key in profile.facts)
    return still_document(
        f"{name} · hornbook profile",
        tag("header", tag("p", "hornbook profile", class_="brand"), tag("h1", name), tag("p", lead, class_="lead")),
        tag("main", tag("dl", *(card(*row) for row in headline(profile)), class_="cards"), *_sections(profile)),
        tag("footer", f"Written by hornbook {__version__}"),
        style_sheet=STYLE_SHEET,
    )


def _sections(profile: Profile) -> Iterator[Html]:
    yield section("One step", _phases(profile))
    yield section("Time by module", *_modules(profile))
    yield section("Time by operator", *_operators(profile))
    yield section("Memory", *_memory(profile))
    traces = ", ".join(rank.trace for rank in profile.ranks)
    hint = f"Every operator over time, for ui.perfetto.dev, beside this page: {traces}"
    measured = facts((key.capitalize(), value) for key, value in profile.facts.items())
    yield section("Measured", measured, tag("p", hint, class_="note small"))


def _phases(profile: Profile) -> Html:
    has_stages = profile.idle is not None
    head = ("Rank", "Waiting for data", "Forward and backward", "Clipping and update", "Waiting for ranks", "Idle")
    rows = [
        (
            number,
            units.short_time(rank.data),
            units.short_time(rank.compute),
            units.short_time(rank.update),
            f"{units.short_time(rank.waiting)} ({rank.waiting / profile.step_seconds:.1%})",
            "" if rank.idle is None else f"{rank.idle:.1%}",
        )
        for number, rank in enumerate(profile.ranks)
    ]
    width = len(head) if has_stages else len(head) - 1
    note = "Medians without the profiler. Waiting for ranks is part of the other phases"
    idle = (
        "; idle is the share of the forward and backward passes for which a rank's stages waited."
        if has_stages
        else "."
    )
    shown = table(head[:width], [row[:width] for row in rows], frozenset(range(1, width)))
    return tag("div", shown, tag("p", note + idle, class_="note small"), class_="phases")


def _modules(profile: Profile) -> Iterator[Html]:
    """Yield the modules aggregated over blocks, and those of each block."""
    kinds = [kind for kind in _MODULE_KINDS if any(getattr(module, kind) > 0 for module in profile.modules)]
    yield tag("ul", *(tag("li", _MODULE_KINDS[kind], class_=kind) for kind in kinds), class_="kinds")
    together = _added_up(profile.modules, lambda name: _BLOCK.sub("blocks.*", name))
    total = sum(module.seconds for module in together) or 1.0
    on_each = f" on each of {len(profile.ranks)} ranks, added up here" if len(profile.ranks) > 1 else ""
    longest = sorted(together, key=lambda module: -module.seconds)[:_MODULES_SHOWN]
    yield _bars((module.name, _parts(module), module.seconds) for module in longest)
    by_part = _added_up(
        profile.modules, lambda name: ".".join(name.split(".")[: 2 if name.startswith("blocks.") else 1])
    )
    folded = _bars((module.name, _parts(module), module.seconds) for module in by_part)
    yield tag("details", tag("summary", "Part by part"), folded)
    yield tag(
        "p",
        f"A module's time is its own, without its submodules. Modules take {units.short_time(total)} of a profiled "
        f"step of {units.short_time(profile.profiled_seconds)}{on_each}.",
        class_="note small",
    )


def _added_up(modules: Iterable[ModuleTime], group: Callable[[str], str]) -> list[ModuleTime]:
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0] * 5)
    for name, *numbers in modules:
        totals[group(name)] = [a + b for a, b in zip(totals[group(name)], numbers, strict=True)]
    return [ModuleTime(name, *numbers) for name, numbers in totals.items()]


def _parts(module: ModuleTime) -> dict[str, float]:
    return {kind: getattr(module, kind) for kind in _MODULE_KINDS}


def _operators(profile: Profile) -> Iterator[Html]:
    total = sum(operator.seconds for operator in profile.operators)
    shown = profile.operators[:_OPERATORS_SHOWN]
    rows = [
        (f"{operator.name} × {operator.calls:,.0f}", {"forward": operator.seconds}, operator.seconds)
        for operator in shown
    ]
    yield _bars(rows, of=total)
    hidden = len(profile.operators) - len(shown)
    if hidden > 0:
        left = total - sum(operator.seconds for operator in shown)
        others = f"{counted(hidden, 'other operator')} take {units.short_time(left)} together."
        yield tag("p", others, class_="note small")


def _memory(profile: Profile) -> Iterator[Html]:
    yield _memory_chart(profile.ranks)
    for number, rank in enumerate(profile.ranks):
        of = f" on rank {number}" if len(profile.ranks) > 1 else ""
        title = tag("h3", f"At the peak{of}: {units.size(rank.peak_bytes)}", class_="peak")
        bars = _bars(_held(rank), show=units.size)
        yield join([title, bars]) if number == 0 else tag("details", tag("summary", title), bars)


def _memory_chart(ranks: Sequence[RankProfile]) -> Html:
    """Return the chart of tensors in memory over the step, one line per rank."""
    y = charts.Axis(low=0.0, high=1.06 * max(rank.peak_bytes for rank in ranks) / _MIB or 1.0)
    x = charts.Axis(low=0.0, high=100.0)
    grid = [tag("i", class_="gy", style=f"bottom:{100 * y.place(tick):.2f}%") for tick in y.ticks(5)]
    grid += [tag("i", class_="gx", style=f"left:{tick:.0f}%") for tick in x.ticks(5)]
    labels = [
        tag("span", units.tick(tick), class_="ly", style=f"bottom:{100 * y.place(tick):.2f}%") for tick in y.ticks(5)
    ]
    labels += [tag("span", f"{tick:.0f} %", class_="lx", style=f"left:{tick:.0f}%") for tick in x.ticks(5)]
    paths = []
    for number, rank in enumerate(ranks):
        places = [f"{1000 * at:.1f} {500 * (1 - y.place(size / _MIB)):.1f}" for at, size in rank.memory]
        paths.append(tag("path", d=f"M{'L'.join(places)}", class_=f"run{number % 8}"))
    peaks = ", ".join(units.size(rank.peak_bytes) for rank in ranks)
    drawn = tag(
        "svg",
        *paths,
        viewBox="0 0 1000 500",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"Tensors in memory over the step; peak {peaks}",
    )
    names = [tag("li", f"rank {number}", class_=f"run{number % 8}") for number in range(len(ranks))]
    legend = tag("ul", *names) if len(ranks) > 1 else ""
    caption = tag("figcaption", tag("h3", "Tensors in memory"), tag("span", "MiB", class_="unit"), legend)
    plot = tag(
        "div", tag("div", *grid, aria_hidden="true"), tag("div", *labels, aria_hidden="true"), drawn, class_="plot"
    )
    return tag("figure", caption, plot, tag("p", "share of the step", class_="x"), class_="memory")


def _held(rank: RankProfile) -> list[tuple[str, dict[str, float], float]]:
    """Return the tensors in memory at the peak as bars, aggregated over blocks."""
    totals, numbers = defaultdict[tuple[str, str], int](int), defaultdict[tuple[str, str], int](int)
    for held in rank.held:
        key = (held.kind, _BLOCK.sub("blocks.*", held.where))
        totals[key] += held.bytes
        numbers[key] += 1
    rows = []
    for (kind, where), size in sorted(totals.items(), key=lambda row: -row[1]):
        times = f" × {numbers[kind, where]}" if numbers[kind, where] > 1 else ""
        name = kind if where == "all" else f"{kind}: {where}{times}"
        rows.append((name, {_color(kind): float(size)}, float(size)))
    left = sum(size for _, _, size in rows[_HELD_SHOWN:])
    others = [(f"{len(rows) - _HELD_SHOWN} others", {"waiting": left}, left)] if left else []
    return rows[:_HELD_SHOWN] + others


def _color(kind: str) -> str:
    return {
        "weights": "update",
        "gathered weights": "update",
        "optimizer state": "data",
        "gradients": "backward",
        "temporary": "recomputed",
    }.get(kind, "forward")


def _bars(
    rows: Iterable[tuple[str, Mapping[str, float], float]],
    *,
    of: float | None = None,
    show: Callable[[float], str] = units.short_time,
) -> Html:
    """Return names with segmented bars, values and shares."""
    rows = list(rows)
    total = sum(value for _, _, value in rows) if of is None else of
    longest = max((value for _, _, value in rows), default=0.0) or 1.0
    cells = []
    for name, parts, value in rows:
        drawn = [
            tag("i", class_=kind, style=f"width:{100 * part / longest:.2f}%")
            for kind, part in parts.items()
            if part > 0
        ]
        cells += [
            tag("dt", name, title=name),
            tag("dd", *drawn, class_="bar", aria_hidden="true"),
            tag("dd", show(value), class_="num"),
            tag("dd", f"{value / (total or 1.0):.1%}", class_="num share"),
        ]
    return tag("dl", *cells, class_="bars") if cells else Html()
