"""The commands of README.md and of the pages in docs/, run as they stand there, on a few small texts.

Nothing is shortened but the corpus: ``my-texts/`` holds forty of them, so that two epochs are a handful of steps. A
``make`` line is checked by ``make --dry-run``, a line that asks for a GPU stops after its recipe, and a download comes
from this machine.
"""

import bz2
import json
from pathlib import Path

import pytest
from pages import ROOT, Shell, commands_of, write_texts
from tiny_mirror import serve
from tiny_wiki import tiny_dump

README = ROOT / "README.md"
GUIDES = [
    ROOT / "docs" / f"{name}.md"
    for name in ("corpora", "encoders", "runs-and-checkpoints", "evaluation", "recipes", "profiling-and-tracking")
]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    write_texts(tmp_path / "my-texts")
    (tmp_path / "wiki.test.tokens").write_text(" = The cat = \n \n The old cat sees the river , and runs . \n")
    (tmp_path / "lambada_test.jsonl").write_text('{"text": "The old cat sees the red river"}\n')
    return Shell(tmp_path)


def run(shell: Shell, command: str) -> None:
    if command.startswith("make "):
        Shell(ROOT).run(command.replace("make ", "make --dry-run ", 1))
    elif command.startswith("hornbook corpus download"):
        with serve(bz2.compress(tiny_dump()), "simplewiki") as mirror:
            shell.run(f"{command} --mirror {mirror.url}")
    elif "--device cuda" in command:
        shell.run(f"{command} --print-recipe")
    else:
        shell.run(command)


def read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_readme(shell: Shell) -> None:
    for command in commands_of(README):
        run(shell, command)
    folder = shell.folder / "runs" / "mine"
    (task,) = read_json(folder / "evaluation.json")["tasks"]
    assert {row["metric"] for row in task["rows"]} >= {"bits_per_byte", "gzip -9", "xz -9"}
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [row["step"] for row in rows if row["kind"] == "train"]
    assert steps == sorted(set(steps)), "the resumed run goes on, it does not begin again"


@pytest.mark.slow
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_guides(shell: Shell, page: Path) -> None:
    shell.run("hornbook tokenizer train my-texts/ --vocab-size 4096 --output tokenizers/mine")
    shell.run("hornbook corpus build my-texts/ --tokenizer tokenizers/mine --validation 0.05 --output corpora/mine")
    for name in ("mine", "other"):
        shell.run(
            f"hornbook train demo --data.train corpora/mine --training.steps 2 --schedule.warmup-steps 1 "
            f"--output runs/{name}"
        )
    shell.run("hornbook tokenizer train my-texts/ --kind wordpiece --vocab-size 300 --output tokenizers/bert")
    shell.run(
        "hornbook corpus build my-texts/ --tokenizer tokenizers/bert --sequences lines --validation 0.1 "
        "--output corpora/bert"
    )
    shell.run(
        "hornbook train bert-tiny --data.train corpora/bert --objective.name mlm --training.steps 1 "
        "--training.global-batch-size 8 --training.micro-batch-size 8 --output runs/bert"
    )
    for command in commands_of(page):
        run(shell, command)


def test_contributing(shell: Shell) -> None:
    commands = commands_of(CONTRIBUTING)
    assert commands
    for command in commands:
        run(shell, command)
