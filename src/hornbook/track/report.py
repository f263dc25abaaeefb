"""The report of a run: one self-contained HTML file, made from the run's folder.

    metrics.jsonl ─────► summary, curves, skipped steps, tasks run during training
    evaluation.json ───► bits per byte beside gzip and xz, a table for each task
    samples.jsonl ─────► generated texts
    checkpoints/ ──────► names and sizes                      ──► report.html
    recipe.toml, environment.json ► recipe and machine

Missing files are left out, and damaged ones named, so the report of a running or failed run works, too. It shows one
moment: write it again for a newer one, or use ``hornbook runs serve``, which serves the same page live.
"""

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hornbook.storage.files import replace_file
from hornbook.track import metrics, units
from hornbook.track.evaluations import options_of, own_bits_per_byte, text_of, value_of
from hornbook.track.figures import TERMS, curves_of
from hornbook.track.page import Html, Parts, card, document, escape, facts, join, notes_of, section, table, tag
from hornbook.track.run_tables import pattern_table, stage_table
from hornbook.track.runs import Row, RunFiles, RunSummary, last, parsed, read_run, summary_of
from hornbook.track.units import number
from hornbook.version import __version__
from hornbook.wording import counted

SAMPLES_FOLDED, ROWS_SHOWN = 24, 50
_RIGHT = ("mlm_accuracy", "nsp_accuracy", "accuracy")
_COMPRESSORS = re.compile(r"(gzip|xz|bzip2|bz2|zstd|lzma|brotli)\b")
_TOML_PART = re.compile(r"""(?P<head>^\s*\[.*?\]\s*$)|(?P<text>"(?:\\.|[^"\\])*"|'[^']*')|(?P<comment>\#.*)""", re.M)


def write_report(run_folder: Path, run: RunFiles | None = None) -> Path:
    """Write ``report.html`` into a run folder, atomically, and return its path.

    Args:
        run_folder: of the run.
        run: what `read_run` has read of it; None to read it here.

    Raises:
        UserError: the folder has no run.
        DataError: one of its files is malformed, except those in `RunFiles.damaged`; names it.
        StorageError: a file cannot be read or the page cannot be written.
    """
    run = run or read_run(run_folder)
    samples = metrics.read(run_folder / "samples.jsonl")
    path = run_folder / "report.html"
    replace_file(path, render(run, samples).encode("utf-8"))
    return path


def render(run: RunFiles, samples: Sequence[Row]) -> str:
    """Return the page of a run."""
    return document(parts_of(run, samples), [curves_of(run, label="", number=0)])


def parts_of(run: RunFiles, samples: Sequence[Row]) -> Parts:
    """Return the parts of a run's page around its curves."""
    summary = summary_of(run)
    return Parts(
        title=f"{' · '.join(dict.fromkeys([run.title, summary.name]))} · hornbook",
        head=join([_title(run), _lead(summary, run), _shape(run, summary.num_parameters), _notes(summary)]),
        before=join([_cards(summary, run), _race(run)]),
        after=join(_parts(run, samples, run.of_kind("train"))),
        foot=f"Written by hornbook {__version__} from {run.folder.resolve()}",
    )


def _parts(run: RunFiles, samples: Sequence[Row], train: Sequence[Row]) -> Iterator[Html]:
    yield section("Skipped steps", _skipped(train))
    yield section("Block-sparse patterns", pattern_table(run.of_kind("topology")))
    yield section("Pipeline stages", stage_table(run))
    yield section("Samples", sample_list(samples))
    yield section("Evaluation", *(_task(task) for task in (*run.tasks, *_tasks_on_the_way(run))))
    yield section("Checkpoints", _checkpoints(run.folder / "checkpoints"))
    yield section("Recipe", tag("pre", _toml(run.recipe_text), class_="recipe") if run.recipe_text else "")
    yield section("Environment", *(_session(session, len(run.sessions)) for session in run.sessions))


def _title(run: RunFiles) -> Html:
    """Return the name of the run's folder, and that of its recipe beside it."""
    recipe = [" ", tag("small", f"recipe {run.name}")] if run.name != run.title else []
    return tag("h1", run.title, *recipe)


def _shape(run: RunFiles, num_parameters: int | None) -> Html:
    """Return the number of parameters and the shape of the model; nothing if the number is unknown."""
    if num_parameters is None:
        return Html()
    model = parsed(run).model
    table = "" if model.vocab_size else " without the token table"
    said = [f"{units.count(num_parameters)} parameters{table}", counted(model.num_layers, "layer")]
    said += [f"hidden size {units.count(model.hidden_size)}", counted(model.num_heads, "head")]
    said += [f"vocabulary {units.count(model.vocab_size)}"] if model.vocab_size else []
    return tag("p", " · ".join(said), class_="lead")


def _notes(summary: RunSummary) -> Html:
    written = notes_of(summary.tags, summary.note)
    damaged = (tag("p", problem, class_="note") for problem in summary.damaged)
    return join([tag("p", written, class_="lead") if written else written, *damaged])


def _lead(summary: RunSummary, run: RunFiles) -> Html:
    """Return the run's state, progress, start and machine."""
    total = f" of {units.count(summary.total_steps)}" if summary.total_steps else ""
    state = summary.state.capitalize()
    done = summary.state == "finished"
    parts: list[Html | str] = [tag("strong", state) if done else state]
    if summary.state != "imported":
        parts.append(counted(summary.step, "step") if done else f"step {units.count(summary.step)}{total}")
    if summary.seconds_left is not None:
        parts.append(f"{units.duration(summary.seconds_left)} left")
    if summary.objective:
        parts.append(summary.objective)
    if summary.started:
        parts.append(f"started {_moment(summary.started)}")
    if run.sessions:
        parts.append(_machine(run.sessions[-1]))
    if summary.num_sessions > 1:
        parts.append(f"resumed {summary.num_sessions - 1}\N{MULTIPLICATION SIGN}")
    return tag("p", join(part if at == 0 else join([" · ", part]) for at, part in enumerate(parts)), class_="lead")


def _machine(session: Mapping[str, Any]) -> str:
    gpus = session.get("gpus")
    if isinstance(gpus, list) and gpus:
        return ", ".join(str(gpu) for gpu in gpus)
    threads = number(session, "threads")
    shown = units.MISSING if threads is None else counted(int(threads), "thread")
    return f"{session.get('cpu', 'unknown processor')}, {shown}"


def _cards(summary: RunSummary, run: RunFiles) -> Html:
    steps = (summary.best_step, summary.validation_step, summary.bits_per_byte_step)
    best, held_out, bits = map(_at, steps)
    accuracy, accuracy_step = _accuracy(run)
    scored = summary.validation_scored.replace("± ", "±\N{NO-BREAK SPACE}")
    training = f"training {units.loss(summary.loss)}{_at(summary.loss_step, ' at step')}"
    resumed = f"in {summary.num_sessions} sessions" if summary.num_sessions > 1 else ""
    skipped = f"{counted(summary.skipped_steps, 'step')} skipped" if summary.skipped_steps else ""
    mfu = "" if summary.mfu is None else f"; MFU {summary.mfu:.1%}"
    shown = [
        ("Best validation loss", units.loss(summary.best_validation_loss), best),
        (
            "Last validation loss",
            units.loss(summary.validation_loss),
            "; ".join(filter(None, [held_out, scored, training])),
        ),
        (
            "Last training loss",
            units.loss(summary.loss if summary.validation_loss is None else None),
            _at(summary.loss_step),
        ),
        ("Bits per byte", units.bits(summary.bits_per_byte), "; ".join(filter(None, [bits, run.held_out]))),
        accuracy,
        ("Tokens", units.short(summary.tokens), skipped or "seen in training"),
        ("Training time", units.duration(summary.seconds), resumed),
        ("Speed", units.short(summary.tokens_per_second), f"tokens per second, median{mfu}"),
    ]
    names = {"bits_per_byte": "Bits per byte", "validation_loss": "Last validation loss", "loss": "Last training loss"}
    stale = {title for name, title in names.items() if summary.measured[name][2]}
    stale |= {accuracy[0]} if accuracy_step < max(steps[1] or 0, steps[2] or 0) else set()
    cards = [card(*item, is_old=item[0] in stale) for item in shown if item[1] != units.MISSING]
    return tag("dl", *cards, class_="cards") if cards else Html()


def _at(step: int | None, before: str = "at step") -> str:
    return "" if step is None else f"{before} {units.count(step)}"


def _accuracy(run: RunFiles) -> tuple[tuple[str, str, str], int]:
    """Return an encoder's accuracies, held-out or else in training (title, value, the others) and their step."""
    for kind, where in (("validation", "held out"), ("train", "in training")):
        rows = [row for row in run.of_kind(kind) if any(number(row, term) is not None for term in _RIGHT)]
        shares = [(TERMS[term][0], f"{share:.1%}") for term in _RIGHT if (share := last(rows, term)) is not None]
        if shares:
            (title, value), *others = shares
            step = int(rows[-1]["step"])
            return (title, value, ", ".join([f"{where}{_at(step, ' at step')}", *map(" ".join, others)])), step
    return ("", units.MISSING, ""), 0


def _race(run: RunFiles) -> Html:
    """Return bars of the bits per byte of the model and of compressors on its validation split."""
    own = own_bits_per_byte(run.tasks, run.validation_fingerprint)
    bits = value_of(own, "bits_per_byte") if own else None
    if own is None or bits is None:
        return Html()
    rows = [(str(row.get("metric")), number(row, "value")) for row in own["rows"]]
    others = [(metric, value) for metric, value in rows if value is not None and _COMPRESSORS.match(metric)]
    if not others:
        return Html()
    step = number(own, "step") or 0
    is_old = step < max((int(row["step"]) for row in run.of_kind("validation")), default=0)
    note = f"Bits per byte of held-out text ({text_of(own)}), after step {units.count(step)}; lower is better."
    note += " There is a newer validation loss: `hornbook evaluate` measures them again." if is_old else ""
    bars = _bars([("this model", bits), *others], is_old=is_old)
    return section("Compared with compressors", bars, tag("p", note, class_="note"))


def _bars(values: Sequence[tuple[str, float]], *, is_old: bool) -> Html:
    longest = max(value for _, value in values) or 1.0
    rows = []
    for at, (label, value) in enumerate(values):
        own = "own" if at == 0 else ""
        bar = tag("i", style=f"width:{100 * max(0.0, value) / longest:.1f}%")
        rows += [
            tag("dt", label, class_=own or None),
            tag("dd", bar, class_=f"{own} bar".strip(), aria_hidden="true"),
            tag("dd", units.bits(value), class_=f"{own} num {'old' if own and is_old else ''}".strip()),
        ]
    return tag("dl", *rows, class_="race")


def _tasks_on_the_way(run: RunFiles) -> Iterator[dict[str, Any]]:
    """Yield the last result of each task that ran during training."""
    rows = run.of_kind("task")
    newest = {str(row.get("task")): row["step"] for row in rows}
    for name, step in newest.items():
        last = [row for row in rows if (str(row.get("task")), row["step"]) == (name, step)]
        yield {"name": name, "rows": last, "step": step, "data": {"name": last[0].get("data")}}


def _skipped(train: Sequence[Row]) -> Html:
    """Return a table of the skipped steps and their non-finite values."""
    rows, before, since = [], 0.0, 0
    for row in train:
        now = number(row, "skipped_steps") or 0.0
        if now > before:
            odd = row.get("non_finite")
            what = ", ".join(f"{key} {value}" for key, value in odd.items()) if isinstance(odd, dict) else ""
            rows.append((f"{units.count(since + 1)} to {units.count(row['step'])}", units.count(now - before), what))
        before, since = now, row["step"]
    more = f"The first {ROWS_SHOWN} of {len(rows)} places." if len(rows) > ROWS_SHOWN else ""
    found = table(("Between steps", "Skipped", "Not finite"), rows[:ROWS_SHOWN], frozenset({1}))
    return join([found, tag("p", more, class_="note") if more else ""]) if found else found


def sample_list(samples: Sequence[Row]) -> Html:
    """Return the first sample beside the last one and, folded, an evenly spaced selection of those between."""
    if not samples:
        return Html()
    ends, between = (samples[0], *samples[1:][-1:]), samples[1:-1]
    stride = -(-len(between) // SAMPLES_FOLDED) or 1
    chosen = between[::stride]
    label = f"Samples between, {len(chosen)} of {len(between)}" if stride > 1 else f"Samples between, {len(chosen)}"
    folded = tag("details", tag("summary", label), *(_sample(row) for row in chosen)) if chosen else ""
    return tag("div", tag("div", *(_sample(row) for row in ends), class_="ends"), folded, class_="samples")


def _sample(row: Row) -> Html:
    prompt, text = (str(row.get(key) or "") for key in ("prompt", "text"))
    written = tag("pre", tag("span", prompt, class_="prompt") if prompt else "", text.removeprefix(prompt))
    return tag("div", tag("p", f"after step {units.count(row['step'])}"), written, class_="sample")


def _task(task: Mapping[str, Any]) -> Html:
    rows = [(_breakable(str(row.get("metric", ""))), _value(row), _convention(row)) for row in task["rows"]]
    title = tag("h3", str(task.get("name", "")))
    step, date = number(task, "step"), task.get("date")
    said = [f"on {text_of(task)}", options_of(task), "" if step is None else f"after step {units.count(step)}"]
    said.append(f"measured {_moment(date)}" if isinstance(date, str) else "")
    note = tag("p", "; ".join(filter(None, said)), class_="note")
    return tag("div", title, note, table(("Metric", "Value", "Convention"), rows, frozenset({1})), class_="task")


def _breakable(name: str) -> Html:
    """Return a name that a narrow page breaks after underscores, so that it leaves room for the text beside it."""
    return Html(f"_{tag('wbr')}".join(map(escape, name.split("_"))))


def _convention(row: Mapping[str, Any]) -> Html:
    """Return a metric's convention and precision and, highlighted, the published results it is comparable with."""
    peer, compute = row.get("comparable_with"), row.get("compute") or "none"
    precision = "" if compute == "none" else f"; computed in {compute}"
    marked = [" ", tag("strong", f"Comparable with {peer}.")] if peer else []
    return join([row.get("convention") or "", precision, *marked])


def _value(row: Mapping[str, Any]) -> str:
    value = number(row, "value")
    if value is None:
        return str(row.get("value", units.MISSING)) if row.get("value") is not None else units.MISSING
    return units.count(value) if abs(value) >= 1000 else units.significant(value, 4)


def _checkpoints(folder: Path) -> Html:
    found = sorted(folder.glob("step-*")) if folder.is_dir() else []
    rows = [
        (path.name, units.size(sum(file.stat().st_size for file in path.rglob("*") if file.is_file())), _written(path))
        for path in found
        if (path / "manifest.json").is_file()
    ]
    return table(("Name", "Size", "Written"), rows, frozenset({1}))


def _written(path: Path) -> str:
    moment = datetime.datetime.fromtimestamp((path / "manifest.json").stat().st_mtime, datetime.UTC)
    return _moment(moment.isoformat())


def _moment(text: str) -> str:
    """``2026-11-20T14:03:59+00:00`` -> ``2026-11-20 14:03 UTC``; any other text is unchanged."""
    try:
        moment = datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return text
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _toml(text: str) -> Html:
    """Return the recipe with its sections and comments highlighted."""
    parts: list[object] = []
    at = 0
    for match in _TOML_PART.finditer(text):
        kind = match.lastgroup
        parts += [text[at : match.start()], match[0] if kind == "text" else tag("span", match[0], class_=kind)]
        at = match.end()
    return join([*parts, text[at:]])


def _session(session: Mapping[str, Any], num_sessions: int) -> Html:
    """Return one start of the run: its command, machine and software."""
    git = session.get("git")
    commit = f"{git.get('commit', '')}{', modified' if git.get('dirty') else ''}" if isinstance(git, dict) else None
    sets = session.get("instruction_sets")
    gpus = session.get("gpus")
    pairs = [
        ("Command", tag("code", session["command"]) if session.get("command") else None),
        ("Started", _moment(str(session["started"])) if session.get("started") else None),
        ("Processor", session.get("cpu")),
        ("Cores, threads", f"{session.get('cores', units.MISSING)}, {session.get('threads', units.MISSING)}"),
        ("Instruction sets", ", ".join(str(name) for name in sets) if isinstance(sets, list) else None),
        ("Memory", units.size(memory) if (memory := number(session, "memory_bytes")) is not None else None),
        ("GPUs", ", ".join(str(gpu) for gpu in gpus) if isinstance(gpus, list) else None),
        ("CUDA", session.get("cuda")),
        ("System", session.get("platform")),
        ("Python", session.get("python")),
        ("PyTorch", session.get("torch")),
        ("hornbook", session.get("hornbook")),
        ("Commit", commit),
    ]
    step = units.count(number(session, "from_step") or 0)
    title = tag("h3", "From the start" if step == "0" else f"Resumed after step {step}") if num_sessions > 1 else ""
    return tag("div", title, facts((name, value) for name, value in pairs if value), class_="session")
