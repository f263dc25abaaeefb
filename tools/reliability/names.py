"""Hostile names and texts of runs, recipes and corpora: in pages and in a terminal, they stay text.

Each holds a line of its own, a tag or characters that move the cursor or reorder text. On a terminal, none of these
may arrive; in a page, none of them may become an element or an attribute.
"""

import contextlib
import io
import json
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

from bad_files import make_genuine
from fake_run import default_rows, make_run
from trials import Part, Trial

from hornbook.cli.main import main

_LINE, _TAG = "forged-line", "evil-tag"
TEXTS = (
    f"a\n{_LINE}", f"a\r{_LINE}", f"a\r\n{_LINE}\r\n", f"a\u2028{_LINE}\x85{_LINE}", "a\b\b\b\x7f\0b",
    "\x1b[31mred\x1b[2J\x1b]0;title\x07", "\x9b31m\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "gpj.\u202eexe\u202c \u2066x\u2069 \u200b\u200f\ufeff\U000e0041", f"<{_TAG}>", f'"><{_TAG} onevil="1">',
    f"'><{_TAG} onevil='1'>", '" onevil="1', "' onevil='1", f"</script><{_TAG}>",
    f"</title></style></textarea><{_TAG}>", f"--><{_TAG}><!--", f"<!--<script>{_TAG}", f"]]><{_TAG}/>",
    "{{7*7}}${7*7}`x`", f"| a | b |\n|---|---|\n| [x](javascript:{_TAG}) |", "-rf", "--help",
    "; touch canary; $(touch canary)", "a" * 5000 + f"\n{_LINE}<{_TAG}>", "é" * 120, "\ud800\udfff",
)  # fmt: skip
"""What a name or a text may be."""
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
_UNSAFE_IN_PAGES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_FILES = ("metrics.jsonl", "samples.jsonl", "evaluation.json", "environment.json", "run.json", "notes.json")


class _Elements(HTMLParser):
    """Raise AssertionError if a text became an element, an attribute or a link."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != _TAG, f"a text became an element: {self.get_starttag_text()}"
        for name, value in attrs:
            assert name != "onevil" and not (value or "").startswith("javascript:"), f"{tag} got the attribute {name}"


def _file_name(text: str) -> str:
    """Return a text as the name of a file."""
    short = text.replace("/", "_").replace("\0", "_").encode("utf-8", "surrogatepass")[:200]
    return os.fsdecode(short)


def _run_folder(trial: Trial, text: str) -> list[list[str]]:
    """Name a run's folder so."""
    run = make_run(trial.folder / "runs" / _file_name(text))
    return _runs_commands(trial, run)


def _run_texts(trial: Trial, text: str) -> list[list[str]]:
    """Put the text into a run's recipe and into half of its files, as keys and as values."""
    rows = [{**row, trial.draws.choice(("kind", "note", "loss", text)): text} for row in default_rows()[:9]]
    quoted = json.dumps(text.encode(errors="replace").decode())
    recipe = f"name = {quoted}\n[model]\nfamily = {quoted}\nnum_layers = 4\n[data]\ntrain = [{quoted}]\n"
    run = make_run(trial.folder / "runs" / "a", recipe=recipe)
    content = json.dumps({text: text, "tasks": [{"name": text, "rows": [{"metric": text, "value": text}]}]})
    lines = "".join(json.dumps(row) + "\n" for row in [*default_rows(), *rows])
    for file in trial.draws.sample(_FILES, 3):
        (run / file).write_text(lines if file.endswith("l") else content)
    return _runs_commands(trial, run)


def _runs_commands(trial: Trial, run: Path) -> list[list[str]]:
    other = make_run(trial.folder / "runs" / "other")
    return [
        ["runs", "list", str(trial.folder / "runs")],
        ["runs", "compare", str(other), str(run)],
        ["runs", "compare", str(other), str(run), "--html", str(trial.folder / "compared.html")],
        ["runs", "note", str(run), _text_of(trial)],
        ["runs", "tag", str(run), _text_of(trial)[:50]],
        ["runs", "report", str(run)],
        ["checkpoint", "list", str(run)],
        ["checkpoint", "verify", str(run)],
        ["evaluate", str(run)],
    ]


def _corpus(trial: Trial, text: str) -> list[list[str]]:
    """Name a corpus and its texts' file so, and put the text into a document."""
    name = _file_name(text)
    texts, corpus = trial.folder / f"in {name}", trial.folder / f"out {name}"
    texts.mkdir()
    (texts / f"a {name}.jsonl").write_text("".join(json.dumps({"text": f"{n} {text}"}) + "\n" for n in range(20)))
    tokenizer = str(trial.shared / "tokenizer")
    return [
        ["corpus", "build", str(texts), "--tokenizer", tokenizer, "--output", str(corpus)],
        ["corpus", "inspect", str(corpus)],
        ["corpus", "verify", str(corpus)],
        ["corpus", "convert", str(corpus), str(trial.folder / f"{name}.npy")],
        ["train", "demo", "--data.train", str(corpus), "--print-recipe"],
        ["doctor", "demo", "--data.train", str(corpus)],
    ]


def _recipe(trial: Trial, text: str) -> list[list[str]]:
    """Name a recipe's file so, and what it has."""
    path = trial.folder / f"{_file_name(text)}.toml"
    quoted = json.dumps(text.encode(errors="replace").decode())
    path.write_text(f"name = {quoted}\n[model]\n{quoted} = 1\nfamily = {quoted}\n")
    return [["plan", str(path)], ["train", str(path), "--print-recipe"], ["doctor", str(path)]]


def _missing(trial: Trial, text: str) -> list[list[str]]:
    """Name what does not exist so."""
    path = str(trial.folder / _file_name(text))
    word = text.replace("\0", "")
    return [
        ["runs", "report", path],
        ["checkpoint", "import", path, "--output", f"{path}.out"],
        ["evaluate", path],
        ["generate", path, "--prompt", word],
        ["corpus", "inspect", path],
        ["corpus", "build", path, "--tokenizer", path, "--output", f"{path}.out"],
        ["train", word],
        ["train", "demo", f"--model.{word}", word],
        ["recipes", word],
        [word],
    ]


PLACES: dict[str, Callable[[Trial, str], list[list[str]]]] = {
    "run's folder": _run_folder,
    "run's texts": _run_texts,
    "corpus": _corpus,
    "recipe": _recipe,
    "missing": _missing,
}
"""What has the name or text, and the commands that show it."""


def _text_of(trial: Trial) -> str:
    return TEXTS[trial.number // len(PLACES) % len(TEXTS)].replace("\0", "").encode(errors="replace").decode()


def _run(trial: Trial) -> str:
    place, text = list(PLACES)[trial.number % len(PLACES)], TEXTS[trial.number // len(PLACES) % len(TEXTS)]
    os.chdir(trial.folder)
    for words in PLACES[place](trial, text):
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = main(words)
        what = f"{' '.join(words[:2])} of a {place} with {text[:40]!r}"
        for said in (out.getvalue(), errors.getvalue()):
            found = _UNSAFE.search(said)
            assert not found, f"{what} printed {said[max(0, found.start() - 40) : found.start() + 40]!r}"
            assert not re.search(f"^[ |>]*{_LINE}", said, re.MULTILINE), f"{what} printed a forged line: {said[:300]!r}"
        assert code in (0, 1, 2), f"{what} ended with {code}"
        assert "Traceback" not in errors.getvalue() and "--debug" not in errors.getvalue(), (
            f"{what}: {errors.getvalue()[:300]}"
        )
    assert not (trial.folder / "canary").exists(), f"{place} with {text!r} ran a command"
    for page in trial.folder.rglob("*.html"):
        content = page.read_text()
        assert not (found := _UNSAFE_IN_PAGES.search(content)), (
            f"{page.name} has {content[found.start() - 40 : found.start() + 9]!r}"
        )
        _Elements().feed(content)
    return place


NAMES = Part(
    name="names",
    promise="names and texts with lines, tags, escapes or reordered characters stay text in a terminal and in pages",
    run=_run,
    prepare=make_genuine,
    trials=len(TEXTS) * len(PLACES),
    short=10,
)
