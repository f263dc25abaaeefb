"""``hornbook evaluate`` from words to a table, a JSON object, or one line that says what is wrong."""

import json
from pathlib import Path

import pytest

from hornbook.__main__ import main
from hornbook.evaluate.tasks import find_task, task_names
from hornbook.storage.faults import inject
from tiny_text import build_tiny

WIKI = " = A title = \n \n the cat sat on the mat , the cat sat on the mat ; the cat sat on the mat . \n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of one step, a corpus, and data of tasks."""
    folder = tmp_path_factory.mktemp("home")
    build_tiny(folder / "corpus")
    sizes = "--model.num-layers 1 --model.hidden-size 32 --model.max-positions 48 --data.sequence-length 48"
    steps = "--training.steps 1 --schedule.warmup-steps 0 --tracking.sample-every-steps none --threads 1"
    assert main(f"train demo --data.train {folder}/corpus --output {folder}/run {sizes} {steps}".split()) == 0
    (folder / "wiki.tokens").write_text(WIKI)
    (folder / "lambada.jsonl").write_text('{"text": "the cat sat on the mat"}\n{"text": "the mat, the cat"}\n')
    return folder


@pytest.fixture(autouse=True)
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)


def evaluate(*words: str) -> int:
    return main(["evaluate", "run", *words, "--threads", "1"])


def test_one_table_of_all_conventions(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--tasks", "wikitext103", "--data", "wiki.tokens") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("wikitext103 of run/checkpoints/step-")
    metrics = [line.split()[0] for line in lines[1:] if "= comparable" not in line]
    assert len(metrics) == len(set(metrics)) == 15
    marked = {lines[at - 1].split()[0]: line for at, line in enumerate(lines) if "= comparable with" in line}
    assert "37.50" in marked["word_perplexity"]
    assert "Megatron-LM" in marked["megatron_word_perplexity"]
    assert len(marked) == 5, "and three of lm-evaluation-harness"


def test_several_tasks_with_their_data(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--tasks", "lambada,wikitext2", "--data", "lambada=lambada.jsonl", "wikitext2=wiki.tokens")
    assert evaluate(*words, "--overlap", "3", "--window", "8", "--micro-batch-size", "2", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert [task["name"] for task in result["tasks"]] == ["lambada", "wikitext2"]
    rows = {row["metric"]: row["convention"] for row in result["tasks"][1]["rows"]}
    assert "windows of 8 tokens, overlap 3 (stride 5)" in rows["word_perplexity"]
    assert json.loads((home / "run" / "evaluation.json").read_text()) == result


def test_numbers_are_shown_though_the_file_for_them_cannot_be_written(
    home: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    words = ("--tasks", "wikitext2", "--data", "wiki.tokens", "--json")
    with inject("write", 1, "enospc"):
        assert evaluate(*words) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["tasks"][0]["rows"]
    assert "word_perplexity" in captured.err
    assert "the result is not kept beside the run: cannot write" in caplog.text


def test_the_default_is_the_runs_own_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--overlap", "0", "--json") == 0
    rows = {row["metric"]: row for row in json.loads(capsys.readouterr().out)["tasks"][0]["rows"]}
    assert "overlap by 0" in rows["bits_per_byte"]["convention"]


def test_the_help_lists_all_tasks_of_hornbook(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--help"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    checks = {name: find_task(name).check for name in task_names()}
    own = [name for name, check in checks.items() if check and check.__module__.startswith("hornbook.")]
    assert len(own) >= 8 and all(name in listed for name in own)


def test_nothing_at_a_path(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "runs").mkdir()
    assert main(["evaluate", "runs/typo"]) == 2
    assert capsys.readouterr().err.startswith("hornbook: error: no run or checkpoint at runs/typo: no such folder;")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "lambda"], "there is no task 'lambda', the tasks are * did you mean \"lambada\"?"),
        (["--tasks", "lambada"], "the task needs LAMBADA's passages, such as lambada_test.jsonl: give it by"),
        (["--tasks", "wikitext103"], "the task needs WikiText's test file"),
        (["--tasks", "lambada", "--data", "none.jsonl"], "cannot read none.jsonl: No such file"),
        (["--tasks", "lambada", "--data", "lambda=x"], "there are data for 'lambda', which is not among the tasks"),
        (["--tasks", "lambada", "--data", "bad.jsonl"], "bad.jsonl, line 2: "),
        (["--tasks", "wikitext2", "--data", "empty"], "empty: there is no text in it"),
        (["--tasks", "wikitext2", "--data", "latin"], "latin: not UTF-8 at byte 3 (0xe9)"),
        (["--window", "49"], "a window of 49 tokens is longer than the model's 48 positions"),
        (["--tasks", "wikitext2", "--data", "wiki.tokens", "--overlap", "48"], "cannot overlap by 48"),
        (["--overlap", "-1"], "must be at least 0"),
        (["--tasks", "lambada", "--overlap", "3"], "--overlap is for tasks that cut a text into windows"),
    ],
)
def test_mistakes_are_one_line(home: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "bad.jsonl").write_text('{"text": "the cat sat"}\n{"txt": "the cat sat"}\n')
    (home / "empty").write_text("\n")
    (home / "latin").write_bytes(b"caf\xe9 au lait")
    before = (home / "run" / "evaluation.json").read_bytes() if (home / "run" / "evaluation.json").exists() else None
    assert evaluate(*words) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert error.startswith("hornbook: error: ")
    assert all(part in error for part in message.split("*"))
    after = (home / "run" / "evaluation.json").read_bytes() if (home / "run" / "evaluation.json").exists() else None
    assert before == after
