"""The commands of README.md and of the pages in docs/, run as they stand there, on a few small texts.

Nothing is shortened but the corpus: ``my-texts/`` holds forty of them, so that two epochs are a handful of steps. A
``make`` line is checked by ``make --dry-run``, a line that asks for a GPU stops after its recipe, and a download comes
from this machine.
"""

import bz2
import json
import shutil
from pathlib import Path

import pytest
from pages import ROOT, Shell, commands_of, write_texts
from tiny_mirror import serve
from tiny_wiki import tiny_dump

README = ROOT / "README.md"
GUIDES = [
    ROOT / "docs" / f"{name}.md"
    for name in (
        "corpora",
        "corpus-reference",
        "encoders",
        "runs-and-checkpoints",
        "run-reference",
        "evaluation",
        "evaluation-reference",
        "recipes",
        "profiling-and-tracking",
    )
]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"


PREPARATION = """
hornbook tokenizer train my-texts/ --vocab-size 4096 --output tokenizers/mine
hornbook corpus build my-texts/ --tokenizer tokenizers/mine --validation 0.05 --output corpora/mine
hornbook train demo --data.train corpora/mine --training.steps 2 --schedule.warmup-steps 1 --output runs/mine
hornbook train demo --data.train corpora/mine --training.steps 2 --schedule.warmup-steps 1 --output runs/other
hornbook tokenizer train my-texts/ --kind wordpiece --vocab-size 300 --output tokenizers/bert
hornbook corpus build my-texts/ --tokenizer tokenizers/bert --sequences lines --validation 0.1 --output corpora/bert
hornbook train bert-tiny --data.train corpora/bert --objective.name mlm --training.steps 1 \
  --training.global-batch-size 8 --training.micro-batch-size 8 --output runs/bert
"""
"""What the guides take for granted."""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return shell_in(tmp_path)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the preparation of all guides has run; ``kept`` beside it is its copy."""
    folder = tmp_path_factory.mktemp("guides") / "home"
    folder.mkdir()
    shell_in(folder).run(PREPARATION)
    shutil.copytree(folder, folder.with_name("kept"), symlinks=True)
    return folder


@pytest.fixture
def guide_shell(prepared: Path) -> Shell:
    """A shell in the prepared folder as it was: its name must stay, since corpora and runs name their files."""
    shutil.rmtree(prepared)
    shutil.copytree(prepared.with_name("kept"), prepared, symlinks=True)
    return Shell(prepared)


def shell_in(folder: Path) -> Shell:
    write_texts(folder / "my-texts")
    book = "".join(path.read_text(encoding="utf-8") for path in sorted((folder / "my-texts").iterdir()))
    (folder / "books").mkdir()
    (folder / "books" / "novel.txt").write_text(book, encoding="utf-8")
    (folder / "wiki.test.tokens").write_text(" = The cat = \n \n The old cat sees the river , and runs . \n")
    (folder / "lambada_test.jsonl").write_text('{"text": "The old cat sees the red river"}\n')
    return Shell(folder)


def run(shell: Shell, command: str) -> None:
    if command.startswith("make "):
        Shell(ROOT).run(command.replace("make ", "make --dry-run ", 1))
    elif command.startswith("hornbook corpus download"):
        with serve(bz2.compress(tiny_dump()), "simplewiki") as mirror:
            shell.run(f"{command} --mirror {mirror.url}")
    elif "--device cuda" in command:
        shell.run(f"{command} --print-recipe")
    else:
        shell.run(command.replace("--training.steps 600", "--training.steps 2 --schedule.warmup-steps 1"))


def read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.slow
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
def test_the_guides(guide_shell: Shell, page: Path) -> None:
    for command in commands_of(page):
        run(guide_shell, command)


def test_contributing(shell: Shell) -> None:
    commands = commands_of(CONTRIBUTING)
    assert commands
    for command in commands:
        run(shell, command)
